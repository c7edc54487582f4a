"""Whole pipelines in requests, in place of what a pipeline's file says."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mlops.contract.refs import digest_of
from mlops.contract.section import SpecError
from mlops.contract.step import EXPERIMENT_STEPS
from mlops_provider.section_file import KeyPath, value_of
from mlops_provider.spec import Pipeline

_PARTS: Final = (*EXPERIMENT_STEPS, "pods")
"""Of a pipeline's file, what an experiment may have otherwise."""


def spec_settings(text: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return what a pipeline says of the steps of an experiment otherwise than its file, by the names of the settings.

    :param text: of the file
    :param spec: the whole pipeline, as a file has it; what no step of an experiment reads may be left out
    :raises SpecError: where a step is left out, or something else differs
    """
    own = _as_json(value_of(text, "the pipeline's file"))
    for key, value in spec.items():
        if key not in _PARTS and not _are_same(value, own.get(key)):
            raise SpecError(f"spec.{key}={json.dumps(value)}: {_fix(key, own.get(key))}")
    for step in EXPERIMENT_STEPS:
        if own.get(step) is not None and step not in spec and step != "tune":
            raise SpecError(
                f"spec.{step} is missing: a spec is a whole pipeline; settings change some of that which Airflow has"
            )
    found = [each for step in EXPERIMENT_STEPS for each in _differences(own.get(step), spec.get(step), (step,))]
    if "pods" in spec:
        found += _differences_of_pods(own.get("pods") or {}, spec["pods"])
    return {".".join(keys): value for keys, value in found}


def steps_digest(text: str) -> str:
    """
    Return a digest of what a pipeline's file says of the steps of an experiment.

    :param text: of the file
    """
    own = _as_json(value_of(text, "the pipeline's file"))
    return digest_of({part: own.get(part) for part in _PARTS})


def refuse_changed(file: Path, digest: str | None) -> None:
    """
    Check that a pipeline's file is as it was when a whole pipeline was compared with it.

    :param digest: of its steps then; None: none was
    :raises SpecError: where its steps are others now
    """
    if digest is not None and digest != steps_digest(file.read_text(encoding="utf-8")):
        raise SpecError(
            f"{file.name} has been changed since a whole pipeline was sent, of which the run knows what differs from "
            "the file only: send it again"
        )


def _fix(key: str, own: Any) -> str:
    known = [field.alias or name for name, field in Pipeline.model_fields.items()]
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        return f"a pipeline has no {key!r}: {hint}"
    said = "does not give it" if own is None else f"says {json.dumps(own)}"
    return f"an experiment takes it from the pipeline's file, which {said}; leave it out, or change the file"


def _differences(own: Any, other: Any, keys: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the innermost settings that differ; as a whole where a key is gone or is no plain name."""
    if isinstance(own, dict) and isinstance(other, dict) and own.keys() <= other.keys() and all(map(_is_name, other)):
        for key, value in other.items():
            if key in own:
                yield from _differences(own[key], value, (*keys, key))
            else:
                yield (*keys, key), value
    elif isinstance(own, list) and isinstance(other, list) and len(own) == len(other):
        for number, (before, after) in enumerate(zip(own, other, strict=True)):
            yield from _differences(before, after, (*keys, str(number)))
    elif not _are_same(own, other):
        yield keys, other


def _differences_of_pods(own: Mapping[str, Any], other: Any) -> Iterator[tuple[KeyPath, Any]]:
    """Yield what pods are to have otherwise; what is left out is null, as nothing is given there."""
    if not isinstance(other, dict) or not all(isinstance(each, dict) for each in other.values()):
        yield ("pods",), other
        return
    for place in [*other, *(each for each in own if each not in other)]:
        before, after = own.get(place) or {}, other.get(place) or {}
        for name in [*after, *(each for each in before if each not in after)]:
            if not _are_same(before.get(name), after.get(name)):
                yield ("pods", place, name), after.get(name)


def _is_name(key: Any) -> bool:
    return isinstance(key, str) and bool(key) and "." not in key


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _are_same(one: Any, other: Any) -> bool:
    """Whether JSON has them alike, by which ``true`` is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
