"""What came of a run, by the states of its tasks and by what these have said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mlops.contract.rest import Standing
from mlops.contract.step import Failure
from mlops_provider.exceptions import is_lost
from mlops_provider.operator_keys import TRIES

_CAUSES: Final[Mapping[str, str]] = {
    "timed_out": "It took longer than its DAG allows (dagrun_timeout).",
    "all_tasks_deadlocked": "No task of it could run any more, for the state that others are in.",
}
"""Why a run failed, other than by its tasks, by the word that Airflow has for it."""
_FAILED: Final = "It failed"
CANCELLED: Final = "It was cancelled"
"""Begins what happened where somebody has cancelled the run."""
_TASK_FAILED: Final = "task_failure"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A task, as it ended."""

    task_id: str
    state: str
    operator: str = ""
    """Name of its class."""
    map_index: int = -1
    has_begun: bool = True
    news: str = ""
    """What it has brought about, or why it had nothing to do."""
    failure: Failure | None = None
    """What it has said of why it failed."""

    @property
    def name(self) -> str:
        return self.task_id if self.map_index == -1 else f"{self.task_id}[{self.map_index}]"

    @property
    def is_lost(self) -> bool:
        """Whether its process has ended without a word of its own, as one does that somebody ends."""
        return is_lost(None if self.failure is None else {"type": self.failure.type})


def happened(state: str, tasks: Sequence[Ended], cause: str = "") -> str:
    """
    Say what came of a run; empty where there is nothing to tell.

    :param state: of the run
    :param tasks: in the order in which they ended
    :param cause: Airflow's word for why the run ended
    """
    if state == "failed":
        failed = [task for task in tasks if task.state == "failed"]
        is_of_task = cause in (_TASK_FAILED, "") and failed
        first = [] if is_of_task else [_CAUSES.get(cause, f"{_FAILED}: {cause}" if cause else f"{_FAILED}.")]
        # Whatever else ends a run has the tasks fail that are under way: these have nothing to say.
        told = [_failed(task) for task in failed if is_of_task or task.failure]
        return "\n".join([*first, *told])
    done = [task.news for task in tasks if task.state == "success" and task.news]
    skipped = [task.news for task in tasks if task.state == "skipped" and task.news]
    return done[-1] if done else f"Nothing goes into production: {skipped[0]}" if skipped else ""


def is_of_tasks(said: str) -> bool:
    """Return whether a run that failed did so by its tasks, by what :func:`happened` says of it."""
    return not said.startswith((*_CAUSES.values(), _FAILED, CANCELLED))


def may_be_cancelled(tasks: Sequence[Ended]) -> bool:
    """
    Return whether it may be a cancellation that has ended a run: not where a task has failed for a reason of its own
    since then, after the run was cleared.

    :param tasks: in the order in which they ended
    """
    # A trial may have failed long before; the search goes on without it.
    failed = [task for task in tasks if task.state == "failed" and task.operator != TRIES]
    return not failed or failed[-1].is_lost


def standing(state: str, promotions: Sequence[str]) -> Standing:
    """
    Return how a pipeline stands by a run that has ended.

    :param state: of the run
    :param promotions: states of its tasks that promote
    """
    if state == "failed":
        return "failed"
    return "done" if not promotions else "promoted" if "success" in promotions else "stopped"


def _failed(task: Ended) -> str:
    return f"{task.name} failed: {task.failure.message if task.failure else 'its log says why'}"
