"""What a task does when it has ended, or has failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlops.contract.section import SpecError, check_section
from mlops_provider.exceptions import StepFailedError, StepLostError, StepRetryableError
from mlops_provider.messages import Tell
from mlops_provider.notifiers.named import mistakes
from mlops_provider.notify_spec import Event, Notify

if TYPE_CHECKING:
    from airflow.sdk import Context


def say_why(context: Context) -> None:
    """Have the step's own message stand last in the task's log, below Airflow's traceback: people look there."""
    error = context.get("exception")
    if isinstance(error, (StepFailedError, StepRetryableError, StepLostError)):
        # Airflow has just begun a group of lines that its pages show folded.
        context["task"].log.info("::endgroup::")
        context["task"].log.error("%s", error)


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


def notified(given: Any, place: str) -> list[Notify]:
    """
    Check a task's ``notify``.

    :raises SpecError: where an entry is none
    """
    if not isinstance(given, (list, tuple)):
        raise SpecError(f"{place}: notify must be a list of entries such as {{'by': 'smtp', ...}}, got {given!r}")
    return [
        check_section(Notify, entry, f"{place}: notify.{number}") if not isinstance(entry, Notify) else entry
        for number, entry in enumerate(given)
    ]


def check_notifiers(notify: Sequence[Notify], place: str) -> None:
    """
    Check the settings of notifiers, which are imported.

    :raises SpecError: one line for each mistake
    """
    if wrong := [f"{place}: {mistake}" for _, mistake in mistakes(notify)]:
        raise SpecError("\n".join(wrong))
