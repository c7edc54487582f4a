"""
A run that judges a training of an experiment: its steps before the evaluation do no work, and hand on what the
experiment has made. From the evaluation on it is a run like any other.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any, Final

from mlops.contract.refs import CheckpointRef, Ref
from mlops.contract.section import NAME_PATTERN
from mlops.contract.step import EXPERIMENTS
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError

if TYPE_CHECKING:
    from airflow.sdk import DAG, Context

PARAM: Final = "judged_experiment"
"""Parameter of a run: the place of the training. Only where nothing goes live without somebody's yes it counts."""
HANDED_ON: Final = frozenset({"ingest", "validate", "features", "trial", "tune", "train"})
"""Steps that do no work in such a run."""
logger = logging.getLogger(__name__)
_NAME: Final = NAME_PATTERN.strip("^$")
_APPROVAL: Final = "ApproveOperator"
# What was spun is gone at the next spin.
_PLACE: Final = re.compile(rf"{EXPERIMENTS}/{_NAME}/(?P<pipeline>{_NAME})(\.(?!spin/){_NAME})?/train/[\w-]+")


def asked_to_judge(context: Context, dag: DAG) -> str:
    """Return the place of the training that a run is about; empty where it trains itself, or its DAG takes none."""
    # A run's conf may name what is no parameter of its DAG, and a DAG in Python what parameters it likes.
    return (context["params"].get(PARAM) or "") if PARAM in dag.params and _somebody_approves(dag) else ""


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
