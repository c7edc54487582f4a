"""Runs and curves in a notebook: the kernel is IPython's own."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import RichOutput, capture_output

from mlops.client import (
    ClientError,
    Curve,
    Curves,
    ModelVersion,
    Run,
    Runs,
    RunSummary,
    Snapshot,
    SnapshotDifference,
    StageAnswer,
    StartedRun,
    Value,
)
from mlops.client.notebook import Picture

ODD = "<script>alert('&\"')</script>"
ENDED: dict[str, Any] = {
    "id": f"events.experiments@{ODD}", "kind": "experiment", "pipeline": "events", "state": "success", "user": ODD,
    "asked": {"as_of": "2024-01-10", "settings": {"train.epochs": 1, ODD: ODD}}, "queued_at": None,
    "started_at": "2024-01-10T00:00:00Z", "ended_at": "2024-01-10T00:01:30Z", "note": ODD,
    "airflow": "http://airflow/dags/events.experiments/runs/one", "tasks": [], "failure": ODD,
    "steps": [{"step": "ingest", "place": "experiments/ana/events/ingest/1"}],
    "result": {
        "experiment": "experiments/ana/events", "interval": ["2024-01-09T00:00:00Z", "2024-01-10T00:00:00Z"],
        "last": None,
        "trainings": [{
            "seed": 1, "checkpoint": "experiments/ana/events/train/1", "epoch": 2, "tracking_run": "1",
            "tracking": "http://mlflow/#/runs/1", "validation": {"loss": 0.25}, "passed": False, "reason": ODD,
            "champion": "3", "evaluation": "experiments/ana/events/evaluate/1", "report": "javascript:alert(1)",
            "metrics": {
                "candidate.ndcg@10": 0.5, "candidate.ndcg@10.low": 0.4, "champion.ndcg@10": 0.75, "samples": 3.0,
            },
        }],
    },
}  # fmt: skip


def curve(metric: str, values: list[float | None], run: str = "r") -> Curve:
    steps = list(range(1, len(values) + 1))
    return Curve(run=run, name=f"train {run}", metric=metric, steps=steps, values=values, at=steps)


def parsed(html: str) -> ET.Element:
    """:raises ET.ParseError: where it is not well-formed"""
    return ET.fromstring(f"<cell>{html}</cell>")


def texts(html: str) -> list[str]:
    return [text for text in parsed(html).itertext() if text.strip()]


@pytest.mark.parametrize("shown", [Run(**ENDED), RunSummary(**ENDED), Runs([RunSummary(**ENDED)])])
def test_what_people_write_is_text(shown: Any) -> None:
    """Broken: a note or a setting of a colleague would run in the notebook of whoever lists the runs."""
    html = shown._repr_html_()
    assert parsed(html).find(".//script") is None
    assert any(ODD in text for text in texts(html))
    links = [link.get("href") for link in parsed(html).iter("a")]
    assert links
    assert all(link and link.startswith("http://") for link in links)


def test_a_release_shows_what_it_waits_for() -> None:
    run = StartedRun(**{**ENDED, "kind": "rollback", "pipeline": None, "waits_for": ODD})
    assert {"rollback", "waits for", ODD} <= set(texts(run._repr_html_()))
    way = {"model": "events", "version": "3", "stage": None, "wanted": "production", "run": None, "airflow": None}
    answer = StageAnswer(**way, is_done=False, waits_for=ODD, question="http://airflow/x", approvers=["vera", "otto"])
    assert {"events", "production", ODD, "http://airflow/x", "vera, otto"} <= set(texts(answer._repr_html_()))


def test_a_run_shows_its_verdict_beside_the_champion() -> None:
    told = texts(Run(**ENDED)._repr_html_())
    assert {"events", "success", "90 s", "would not be registered", "0.5", "0.75"} <= set(told)
    assert "version 3, the champion" in told
    assert not any(".low" in text for text in told), "intervals are in the report"
    judged = texts(Run(**ENDED | {"kind": "night"})._repr_html_())
    assert "did not pass" in judged
    assert "would not be registered" not in judged, "it is no experiment: this was its chance"
    result = ENDED["result"]
    trained = {
        each: result["trainings"][0][each]
        for each in ("seed", "epoch", "checkpoint", "tracking_run", "tracking", "validation")
    }
    until_train = {**ENDED, "result": {**result, "trainings": [trained]}}
    assert {"best epoch 2", "loss", "0.25"} <= set(texts(Run(**until_train)._repr_html_()))
    waiting = {
        **ENDED,
        "state": "queued",
        "started_at": None,
        "ended_at": None,
        "result": None,
        "steps": [],
        "failure": None,
    }
    assert "queued" in texts(Run(**waiting)._repr_html_())
    assert texts(Runs()._repr_html_()) == ["no runs"]


@pytest.mark.parametrize(
    "curves",
    [
        [],
        [curve("loss", [0.5])],
        [curve("loss", [None, None])],
        [curve("loss", [1.7e308, -1.7e308, None, 3])],
        [curve("loss", [1.0, 0.5], run) for run in "abcdefghijkl"],
        [curve("<&>\"'", [0.5, 0.25], "<&>")],
        [curve("$\\frac{$", [0.5, 0.25], run) for run in ("$\\x{$", "b")],
        [curve("_hidden", [0.5], run) for run in ("_a", "b")],
    ],
)
def test_any_curves_can_be_drawn(curves: list[Curve]) -> None:
    html = Curves(curves)._repr_html_()
    figures = parsed(html).findall(".//{http://www.w3.org/2000/svg}svg")
    assert len(figures) == len({curve.metric for curve in curves if len(curve.steps) > 1})
    values = parsed(html).findall(".//tbody/tr")
    assert len(values) == len({curve.metric for curve in curves if len(curve.steps) == 1})


def test_what_is_judged_comes_first_and_single_values_in_a_table() -> None:
    """Broken: a person would look for the loss among thirty figures of one point each."""
    several = [
        curve(metric, [0.5, 0.25], run)
        for metric in ("system/cpu", "loss", "validation_mrr")
        for run in ("aaaaaaaa", "bbbbbbbb")
    ]
    once = [curve("test_mrr", [0.75], "aaaaaaaa"), curve("test_mrr", [None], "bbbbbbbb")]
    for each in (several, once):
        for found in each:
            found.name = "train"
    told = texts(Curves([*several, *once])._repr_html_())
    assert [text for text in told if text in ("validation_mrr", "loss", "system/cpu", "test_mrr")] == [
        "validation_mrr", "loss", "system/cpu", "test_mrr",
    ]  # fmt: skip
    assert told[-6:] == ["metric", "train aaaaaa", "train bbbbbb", "test_mrr", "0.75", "-"]
    assert told.count("train aaaaaa") == 4, "in each legend, and in the table"


def test_points_become_curves_and_each_is_drawn_in_the_colour_of_the_page() -> None:
    values = [
        Value(run=run, name=run, metric="loss", step=step, value=step / 2, at=9) for step in (1, 2) for run in "ab"
    ]
    curves = Curves.of(values)
    assert [(each.run, each.steps, each.values) for each in curves] == [
        ("a", [1, 2], [0.5, 1.0]),
        ("b", [1, 2], [0.5, 1.0]),
    ]
    assert "currentColor" in curves._repr_html_()
    assert Curves.of([Value(run="a", name="a", metric="m", step=1, value=None, at=1)])[0].values == [None]
    assert not math.isnan(curves[0].values[0] or 0.0)


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def test_a_terminal_shows_a_run_at_its_begin_and_end(shell: InteractiveShell) -> None:
    """Broken: it would print a line each second, for hours."""
    with capture_output(stdout=False, stderr=False) as cell:
        picture = Picture(Run(**{**ENDED, "state": "running"}), ())
        for number in range(3):
            picture.add([Value(run="r", name="train", metric="loss", step=number, value=0.5, at=1)], None)
        picture.finish(Run(**ENDED))
    assert len(cell.outputs) == 2


def test_a_program_prints_a_run_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Broken: after hours of following it would end in an AttributeError."""
    picture = Picture(Run(**{**ENDED, "state": "running"}), ())
    picture.finish(Run(**ENDED))
    assert capsys.readouterr().out.splitlines()[-1] == f"{ENDED['id']} is success"


def test_a_cell_changes_while_the_run_goes_on(shell: InteractiveShell) -> None:
    shell.kernel = object()  # by which IPython's own displays tell a notebook
    running = Run(**{**ENDED, "id": "events.experiments@one", "state": "running", "ended_at": None, "result": None})
    queued = running.model_copy(update={"state": "queued"})
    points = [Value(run="r", name="train", metric=metric, step=1, value=0.5, at=1) for metric in ("loss", "rate")]
    with capture_output(stdout=False, stderr=False) as cell:
        picture = Picture(queued, "loss")
        picture.add([], running)
        picture.add(points, None)
        picture.add([], running)
        picture.finish(Run(**ENDED))
    shown: list[RichOutput] = cell.outputs
    assert [each.update for each in shown] == [False, True, True, True], "values wait for a second, or for a look"
    assert len({each.transient["display_id"] for each in shown}) == 1
    first, second, third, last = (texts(each.data["text/html"]) for each in shown)
    assert "queued" in first
    assert "running" in second
    assert "loss" in third
    assert "rate" not in third
    assert "would not be registered" in last


def test_without_a_notebook_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "IPython.display", None)
    with pytest.raises(ClientError, match="there is no IPython: print what watch yields"):
        Picture(Run(**ENDED), [])


SNAPSHOT: dict[str, Any] = {
    "name": "visits", "version": "a" * 64, "place": ODD, "interval_start": "2024-01-08T00:00:00Z",
    "interval_end": "2024-01-09T00:00:00Z", "num_rows": 12345, "num_bytes": 10, "schema_hash": "0",
    "committed_at": "2024-01-09T00:00:00Z", "deprecated": {"reason": ODD, "by": "ana", "at": "2024-01-10T00:00:00Z"},
    "columns": {"at": "Datetime", ODD: "String"}, "event_time": "at", "timezone": "UTC", "grain": "day",
    "window": ["2024-01-08"], "periods": [{"name": "2024-01-08", "num_rows": 1, "num_bytes": 2}],
    "splits": {"train": {"num_rows": 9, "periods": ["2024-01-08"]}}, "sources": {}, "creator": {"run_id": ODD},
    "engine": "polars",
}  # fmt: skip
VERSION: dict[str, Any] = {
    "name": "ranker", "version": "3", "semantic_version": None, "pipeline": "visits", "stage": None,
    "registered_at": "2024-01-09T00:00:00Z", "reason": ODD,
    "metrics": {"candidate.mrr": 0.25, "candidate.mrr.low": 0.1},
    "dataset_version": "a" * 64, "tracking_run": "1", "git_commit": ODD, "artifact_sha256": {},
    "lineage": [{"kind": "dataset", "place": ODD}],
}  # fmt: skip
DIFFERENCE: dict[str, Any] = {
    "before": "a" * 64, "after": "b" * 64, "columns_added": {ODD: "Int64"}, "columns_removed": {"gone": "String"},
    "columns_retyped": {"page": ["String", "Int64"]},
    "periods": [{"name": "2024-01-08", "rows_before": None, "rows_after": 1234}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (Snapshot(**SNAPSHOT), {"visits", "12,345", "2024-01-08 00:00 to 2024-01-09 00:00", "train", "9", ODD}),
        (Snapshot(**{**SNAPSHOT, "periods": [], "deprecated": None}), {"visits"}),
        (ModelVersion(**VERSION), {"ranker", "mrr", "0.25", "dataset", ODD}),
        (ModelVersion(**{**VERSION, "metrics": None, "stage": "canary"}), {"canary"}),
        (SnapshotDifference(**DIFFERENCE), {"page", "gone", "2024-01-08", "1,234", ODD}),
        (
            SnapshotDifference(
                **{**DIFFERENCE, "columns_added": {}, "columns_removed": {}, "columns_retyped": {}, "periods": []}
            ),
            {"no differences"},
        ),
    ],
)
def test_single_things_have_a_page_too(shown: Any, words: set[str]) -> None:
    html = shown._repr_html_()
    assert words <= set(texts(html))
    assert parsed(html).find(".//script") is None
