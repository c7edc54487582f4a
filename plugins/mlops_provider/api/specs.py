"""Whole pipelines in requests, in place of what a pipeline's file says."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from mlops.contract.section import SpecError
from mlops.contract.step import EXPERIMENT_STEPS
from mlops_provider.section_file import KeyPath, value_of
from mlops_provider.spec import Pipeline


def spec_settings(text: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return what a pipeline says of the steps of an experiment otherwise than its file, by the names of the settings.

    :param text: of the file
    :param spec: the whole pipeline, as a file has it; what no step of an experiment reads may be left out
    :raises SpecError: where a step is left out, or something else differs
    """
    own = value_of(text, "the pipeline's file")
    for key, value in spec.items():
        if key not in EXPERIMENT_STEPS and not _are_same(value, own.get(key)):
            raise SpecError(f"spec.{key}={json.dumps(value)}: {_fix(key, own.get(key))}")
    for step in EXPERIMENT_STEPS:
        if own.get(step) is not None and step not in spec and step != "tune":
            raise SpecError(
                f"spec.{step} is missing: a spec is a whole pipeline; settings change some of that which Airflow has"
            )
    steps = {step: spec.get(step) for step in EXPERIMENT_STEPS}
    found = (each for step, value in steps.items() for each in _differences(own.get(step), value, (step,)))
    return {".".join(keys): value for keys, value in found}


def _fix(key: str, own: Any) -> str:
    known = [field.alias or name for name, field in Pipeline.model_fields.items()]
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        return f"a pipeline has no {key!r}: {hint}"
    said = "does not give it" if own is None else f"says {json.dumps(own, default=str)}"
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


def _is_name(key: Any) -> bool:
    return isinstance(key, str) and bool(key) and "." not in key


def _are_same(one: Any, other: Any) -> bool:
    """Whether JSON has them alike, by which ``true`` is not 1."""
    return json.dumps(one, sort_keys=True, default=str) == json.dumps(other, sort_keys=True, default=str)
