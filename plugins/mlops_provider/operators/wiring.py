"""Which task's output a step takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import XComArg
from airflow.sdk.definitions.xcom_arg import PlainXComArg

from mlops.contract.refs import Ref, RefError, class_names, ref_of
from mlops.contract.step import STEPS
from mlops_provider.exceptions import WiringError


def check_wiring(step: str, task_id: str, upstream: Any) -> Any:
    """
    Check what a step's task is given as its input.

    :return: the input; None for a step that takes none
    :raises WiringError: where it is not the output of a task that produces such a ref
    """
    expected = STEPS[step].consumes
    place = f"task {task_id!r}"
    if not expected:
        if upstream is not None:
            raise WiringError(f"{place}: {step} is the first step and takes no ref")
        return None
    wanted = f"{place}: {step} takes a {class_names(expected)}, the output of {_producers(expected)}"
    if isinstance(upstream, PlainXComArg):
        produces = getattr(upstream.operator, "produces", None)
        if produces is not None and produces() not in expected:
            raise WiringError(f"{wanted}, but got the {produces().__name__} of task {upstream.operator.task_id!r}")
        if upstream.key != "return_value":
            raise WiringError(f"{wanted}, but got the XCom {upstream.key!r}")
    elif isinstance(upstream, Mapping):
        try:
            ref_of(expected, upstream)
        except RefError as error:
            raise WiringError(f"{wanted}: {error}") from error
    elif not isinstance(upstream, (XComArg, str)):
        raise WiringError(f"{wanted}, but got {upstream!r}")
    return upstream


def _producers(kinds: Sequence[type[Ref]]) -> str:
    return " or ".join(step for step, kind in STEPS.items() if kind.produces in kinds)
