"""What a task does when it has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlops_provider.exceptions import StepFailedError, StepLostError, StepRetryableError

if TYPE_CHECKING:
    from airflow.sdk import Context


def say_why(context: Context) -> None:
    """Have the step's own message stand last in the task's log, below Airflow's traceback: people look there."""
    error = context.get("exception")
    if isinstance(error, (StepFailedError, StepRetryableError, StepLostError)):
        # Airflow has just begun a group of lines that its pages show folded.
        context["task"].log.info("::endgroup::")
        context["task"].log.error("%s", error)


def as_list(callbacks: Any) -> list[Any]:
    """Return Airflow's callbacks of an event, which may be none, one or several, as a list."""
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
