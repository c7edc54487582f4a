"""What somebody who may edit XComs can put in place of an evaluation."""

from __future__ import annotations

import copy
import functools
import itertools
import operator
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from mlops.contract.refs import Artifact, ModelVersionRef, ReportRef
from mlops_provider.api.evaluations import evaluation_of, interval_of, judged

ODD: tuple[Any, ...] = (
    None,
    True,
    7,
    -1.5,
    float("nan"),
    "",
    "2013-01-01",
    [],
    [1],
    ["a"],
    {},
    {"a": 1},
    {"kind": "report"},
)


def _report(version_ref: ModelVersionRef) -> ReportRef:
    metrics = {"ndcg@10": 0.5, "candidate.ndcg@10": 0.5, "difference.ndcg@10": 0.1, "difference.ndcg@10.low": 0.02}
    page = Artifact(key="blobs/r.html", sha256="ab" * 32, num_bytes=7)
    return replace(version_ref.ancestor(ReportRef), metrics=metrics, champion="6", artifacts={"report": page})


def _places(document: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    for key, value in document.items() if isinstance(document, dict) else ():
        yield from _places(value, (*place, key))


def test_no_value_at_any_place_of_it_is_an_error(version_ref: ModelVersionRef) -> None:
    """Broken: the nights of a pipeline, and the run, would be a 500 until that run has gone."""
    sound = _report(version_ref).to_wire()
    tried = 0
    for (*above, last), value in itertools.product(list(_places(sound))[1:], ODD):
        wire: Any = copy.deepcopy(sound)
        functools.reduce(operator.getitem, above, wire)[last] = value
        if (report := evaluation_of(wire)) is not None:
            assert interval_of(report), (above, last, value)
            with suppress(ValueError):  # which the reader of all nights expects
                assert judged(report).interval == interval_of(report)
        tried += 1
    assert tried > 500


def test_what_was_not_edited_is_read(version_ref: ModelVersionRef) -> None:
    report = _report(version_ref)
    assert evaluation_of(report.to_wire()) == report
    assert evaluation_of("s3://elsewhere") is None
