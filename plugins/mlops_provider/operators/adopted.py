"""
A run that judges what it has not trained. Of a training of an experiment its steps before the evaluation do no work,
and hand on what the experiment has made; of weights that were trained elsewhere the training takes them as they are.
From the evaluation on it is a run like any other.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from mlops.contract.refs import CheckpointRef, Ref, ref_of
from mlops.contract.section import NAME_PATTERN
from mlops.contract.step import EXPERIMENTS, STEPS
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError

if TYPE_CHECKING:
    from airflow.sdk import DAG, Context

PARAM: Final = "judged_experiment"
"""Parameter of a run: the place of the training. Only where nothing goes live without somebody's yes it counts."""
WEIGHTS: Final = "judged_weights"
"""Likewise: weights that were trained elsewhere, see :mod:`mlops_provider.operators.judged_weights`."""
_SEARCH: Final = frozenset({"trial", "tune"})
"""Steps that do no work in a run of the latter kind."""
_HANDED_ON: Final = frozenset({"ingest", "validate", "features", "trial", "tune", "train"})
"""Steps that do no work in a run of the former kind."""
logger = logging.getLogger(__name__)
_NAME: Final = NAME_PATTERN.strip("^$")
_APPROVAL: Final = "ApproveOperator"
# What was spun is gone at the next spin.
_PLACE: Final = re.compile(rf"{EXPERIMENTS}/{_NAME}/(?P<pipeline>{_NAME})(\.(?!spin/){_NAME})?/train/[\w-]+")


class _Step(Protocol):
    """A step's operator."""

    step: ClassVar[str]
    upstream: Any
    pipeline: str
    outlets: list[Any]

    @classmethod
    def produces(cls) -> type[Ref]: ...


def asked_to_judge(context: Context) -> str:
    """Return the place of the training that a run is about; empty where it trains itself, or its DAG takes none."""
    return _asked(context, PARAM) or ""


def weights_to_judge(context: Context) -> Mapping[str, Any] | None:
    """Return what a run says of weights that it is about; None where it trains itself, or its DAG takes none."""
    return _asked(context, WEIGHTS) or None


def _asked(context: Context, name: str) -> Any:
    # A run's conf may name what is no parameter of its DAG, and a DAG in Python what parameters it likes.
    dag: Any = context["dag"]
    return context["params"].get(name) if name in dag.params and _somebody_approves(dag) else None


def handed_on(operator: _Step, context: Context, deployment: Deployment) -> Callable[[], dict[str, Any]] | None:
    """Return what a step does in place of its work, in a run that judges what it has not trained; None: its work."""
    kind, upstream, pipeline = operator.produces(), operator.upstream, str(operator.pipeline)
    place, weights = asked_to_judge(context), weights_to_judge(context)
    if place and weights:
        raise StepFailedError(f"the run was given {PARAM} and {WEIGHTS}: leave one of them out, it judges one model")
    if operator.step in _HANDED_ON and place:
        operator.outlets = []  # the run has made no snapshot that others could be told of
        return lambda: made_by_experiment(kind, place, pipeline, deployment)
    if operator.step in _SEARCH and weights:
        return lambda: _searched_for_nothing(operator.step, upstream)
    return None


def _searched_for_nothing(step: str, upstream: Any) -> dict[str, Any]:
    """
    Return what a step of a search returns where nothing is searched for.

    :param upstream: the features
    :return: of a trial nothing; of the conclusion the features, for the training
    """
    logger.info("nothing is done: the run judges weights that were trained elsewhere")
    return {} if step == "trial" else ref_of(STEPS[step].consumes, upstream).to_wire()


def _somebody_approves(dag: DAG) -> bool:
    """Tell whether nothing of a DAG puts a version into production before somebody has said yes to it."""
    approvals = {
        task.task_id
        for task in dag.tasks
        if task.task_type == _APPROVAL and getattr(task, "settings", {}).get("on_timeout", "reject") == "reject"
    }
    releases = [task for task in dag.tasks if task.task_type != _APPROVAL and getattr(task, "step", None) == "promote"]
    return bool(approvals) and all(approvals & task.get_flat_relative_ids(upstream=True) for task in releases)


def pipeline_of(place: str) -> str | None:
    """Return the pipeline that an experiment's training is of; None where it is no place of one."""
    found = _PLACE.fullmatch(place)
    return None if found is None else found["pipeline"]


def made_by_experiment(kind: type[Ref], place: str, pipeline: str, deployment: Deployment) -> dict[str, Any]:
    """
    :param kind: what the step returns
    :param place: of the training
    :return: the ref's wire form; empty where the experiment had no such step
    :raises StepFailedError: where there is no such training, or it is of another pipeline
    :raises StepRetryableError: where the store does not answer
    """
    from mlops_provider.committed import read_committed
    from mlops_provider.connections import store_of
    from mlops_provider.patience import store_errors

    if pipeline_of(place) != pipeline:
        raise StepFailedError(
            f"the run's parameter {PARAM} is {place!r}; it must be the place of a training of an experiment with this "
            f"pipeline, {EXPERIMENTS}/USER/{pipeline}/train/KEY: mlops runs list shows them"
        )
    with store_errors(deployment.store, f"{place} cannot be read"):
        checkpoint = asyncio.run(read_committed(store_of(deployment), place))
    if not isinstance(checkpoint, CheckpointRef):
        raise StepFailedError(f"there is no training at {place} in {deployment.store}; mlops runs list shows them")
    found = next((link for link in checkpoint.lineage() if isinstance(link, kind)), None)
    if found is None:
        logger.info("nothing is done: the experiment had no such step")
        return {}
    logger.info("nothing is done: %s is handed on", found.place)
    return found.to_wire()
