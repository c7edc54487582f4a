"""What a task does when it has ended, or has failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlops_provider.exceptions import StepFailedError, StepLostError, StepRetryableError
from mlops_provider.messages import Tell, failure_of
from mlops_provider.notify_spec import Event, Notify
from mlops_provider.telemetry import tell_failure

if TYPE_CHECKING:
    from airflow.sdk import Context


def say_why(context: Context) -> None:
    """
    Have the step's own message stand last in the task's log, below Airflow's traceback: people look there. Programs
    read it as an XCom, also where it was not said by a step's process.
    """
    error = context.get("exception")
    if isinstance(error, (StepFailedError, StepRetryableError, StepLostError)):
        task: Any = context["task"]
        # Airflow has just begun a group of lines that its pages show folded.
        task.log.info("::endgroup::")
        task.log.error("%s", error)
        if (tell := getattr(task, "tell", None)) is not None:
            tell(failure_of(error), context)


def count_failed(context: Context) -> None:
    """Count a task that failed, and is not tried again."""
    _count(context, for_good=True)


def count_tried_again(context: Context) -> None:
    """Count a try that failed, of a task that is tried again."""
    _count(context, for_good=False)


def _count(context: Context, *, for_good: bool) -> None:
    task: Any = context["task"]
    failure, error = getattr(task, "failure", None), context.get("exception")
    kind = failure.type if failure is not None else type(error).__name__ if error is not None else "unknown"
    tell_failure(kind, task.metric_tags, for_good=for_good)


def telling(notify: Sequence[Notify], event: Event | None, callbacks: Any, *last: Any) -> list[Any]:
    """
    Return what Airflow calls where something happens to a task.

    :param notify: whom to tell
    :param event: what has happened then; None: nothing that people are told of
    :param callbacks: the user's own, which may be none, one or several
    :param last: ours, called after them
    """
    first = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks is not None else []
    told = [Tell(event, notify)] if any(event in entry.events for entry in notify) and event is not None else []
    return [*first, *told, *last]
