"""The one thing to do next about a run that failed, and whether it has changed what is in production."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mlops_provider.exceptions import CanaryFailedError, StepLostError, StepOutageError
from mlops_provider.operator_keys import CANARIES, PROMOTES, ROLLS_BACK, TRIES, TUNES, VALIDATES
from mlops_provider.verdicts.happened import Ended

MOVES: Final = (PROMOTES, CANARIES, ROLLS_BACK)
"""Operators that change what is in production."""
HALF_MOVED: Final = "It failed while a version was moved: see what is in production (mlops models list)."
_GOES_ON: Final = "it goes on from what is committed"
_NOT_FINITE: Final = "NonFiniteLossError"
"""Of :mod:`mlops.trainer.loop`."""


def action(tasks: Sequence[Ended], is_of_tasks: bool = True) -> str:
    """
    Say what to do about a run that failed.

    :param tasks: in the order in which they ended
    :param is_of_tasks: whether one of them brought it about
    """
    failed = [task for task in tasks if task.state == "failed"]
    if not failed or not is_of_tasks:
        return f"see what ended it, then clear the tasks of the run that have not ended well: {_GOES_ON}."
    first = _cause(failed)
    # All that failed of a mapped task, such as the trials of a search.
    several = sum(task.task_id == first.task_id for task in failed) > 1
    name, told = first.task_id if several else first.name, first.failure
    clear = f"clear {name} and what follows it"
    if told is None:
        return f"read the log of {name}, then {clear}."
    match told.type:
        case CanaryFailedError.__name__:
            return "look at the metrics of the canary; its version is archived, and the next night trains another."
        case StepLostError.__name__:
            why = f"look in the log of {name} whether memory, its machine or somebody ended it"
            return f"{why}, then {clear}: {_GOES_ON}."
        case StepOutageError.__name__:
            return f"see that what it waited for answers (mlops doctor), then {clear}: {_GOES_ON}."
        case _ if first.operator == VALIDATES and not told.retryable:
            return (
                f"read the report of {name}. If the data is wrong, correct it at its source: the next night reads it, "
                f"and this one keeps its snapshot. If it is right, change the schema or the checks, then {clear}."
            )
        case _ if told.type == _NOT_FINITE:
            rate = "the learning rate (in tune.space, where it is searched for)"
            return f"look at the curves before it, change {rate} or the data, then {clear}."
    if told.retryable:
        correct = "correct the code or the settings if it is theirs, or see that it has passed"
        return f"all tries failed: {correct}, then {clear}: {_GOES_ON}."
    return f"change what {name} names, then {clear}; what was committed before it stays."


def _cause(failed: Sequence[Ended]) -> Ended:
    """Return the task that brought a run down: of a search some trials may fail, and it fails where all of them do."""
    others = [task for task in failed if task.operator != TRIES]
    trials = [task for task in failed if task.operator == TRIES]
    return trials[0] if trials and (not others or others[0].operator == TUNES) else others[0]


def production(state: str, tasks: Sequence[Ended], last: str) -> str:
    """
    Say whether a run that has ended has changed what is in production.

    :param last: the newest version that a run has put there, for people; empty where none has
    """
    if state == "failed" and any(map(is_half_moved, tasks)):
        return HALF_MOVED
    if any(task.state == "success" and task.operator == PROMOTES for task in tasks):
        return "" if state == "success" else "It failed after it had put a version into production."
    is_canary = any(task.state == "success" and task.operator == CANARIES for task in tasks)
    said = "Its version is a canary and not promoted" if is_canary else "It changed nothing in production"
    before = f"the last version that a night put there is {last}" if last else "no night has put a version there yet"
    return f"{said}; {before}."


def is_half_moved(task: Ended) -> bool:
    """
    Whether a task may have moved a version, or not: it failed, or Airflow has skipped it while it ran, as it does where
    a run takes too long.
    """
    if task.operator not in MOVES:
        return False
    if task.state == "failed":
        return task.failure is None or task.failure.type != CanaryFailedError.__name__
    return task.state == "skipped" and task.has_begun and not task.news
