"""Tell people: callbacks of Airflow's tasks that send messages of incidents."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import tenacity
from airflow.sdk.configuration import conf

from mlops.contract.step import Failure
from mlops_provider.exceptions import StepFailedError, StepLostError
from mlops_provider.incidents import Incident, incident_of
from mlops_provider.notifiers.named import sender
from mlops_provider.notify_spec import Event, Notify
from mlops_provider.operator_keys import WITHOUT_A_WORD
from mlops_provider.verdicts.actions import HALF_MOVED, MOVES, action, is_half_moved
from mlops_provider.verdicts.happened import Ended

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Logger

_TRIES: Final = 3
_MOST_SECONDS: Final = 15.0
"""For which a process waits for its messages to be sent, all together."""


class Tell:
    """
    A callback of a task that tells people what happened to it.

    A message that cannot be sent fails nothing: the task's log says so.

    :param event: what has happened where the callback is called
    """

    def __init__(self, event: Event, notify: Sequence[Notify]) -> None:
        self.event = event
        self.notify = notify

    def __call__(self, context: Context) -> None:
        task = context["task"]
        if message := message_of(self.event, context):
            incident = incident_of(self.event, context, message, action=action_of(self.event, context))
            tell(self.notify, incident, task.log)


def message_of(event: Event, context: Context) -> str:
    """Return what a task has to say of how it ended; empty where that is no news."""
    error = context.get("exception")
    if event != "failed":
        return str(getattr(context["task"], "news", ""))
    if error is None:  # Airflow's DAG processor speaks for a process that cannot
        return f"{WITHOUT_A_WORD} The log shows how far it came."
    return str(error) or type(error).__name__


def action_of(event: Event, context: Context) -> str:
    """Return what a task that failed means for production, and what to do next; empty of other events."""
    if event != "failed":
        return ""
    task, error = context["task"], context.get("exception")
    failure: Failure | None = getattr(task, "failure", None)
    if failure is None:
        # Of a process that was lost Airflow's DAG processor speaks, which has no error.
        failure = failure_of(error if isinstance(error, BaseException) else StepLostError())
    ended = Ended(task_id=task.task_id, state="failed", operator=type(task).__name__, failure=failure)
    return f"{_production(task, ended)}\nNext: {action([ended])}"


def _production(task: Any, ended: Ended) -> str:
    """Say what a task's failure means for production, by what comes before it in its DAG."""
    if is_half_moved(ended):
        return HALF_MOVED
    if any(getattr(each, "task_type", "") in MOVES for each in task.get_flat_relatives(upstream=True)):
        return "A task before it may have put a version into production (mlops models list)."
    return f"{ended.task_id} changed nothing in production."


def failure_of(error: BaseException) -> Failure:
    """Return why a task fails where no step's process has said it."""
    return Failure(type(error).__name__, str(error), not isinstance(error, StepFailedError), {})


def tell(notify: Sequence[Notify], incident: Incident, log: Logger | logging.Logger) -> None:
    """Send an incident's message by each entry that wants it, all at once."""
    tell_all([(notify, incident)], log)


def tell_all(told: Sequence[tuple[Sequence[Notify], Incident]], log: Logger | logging.Logger) -> None:
    """Send messages of several pipelines, in the time that one has."""
    seconds = _seconds()
    sending = [
        (f"notify.{number} ({entry.by}{_connection(entry)}): {incident.subject}", _Sending(entry, incident))
        for notify, incident in told
        for number, entry in enumerate(notify)
        if incident.event in entry.events
    ]
    end = time.monotonic() + seconds
    for what, thread in sending:
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            log.error("The message was not sent within %g s by %s", seconds, what)
        elif thread.error is not None:
            log.error("The message was not sent, %r, by %s", thread.error, what)
        else:
            log.info("The message was sent by %s", what)


def _seconds() -> float:
    # Airflow kills a task's process that goes on for so long after its end, and takes it for one that was lost: a
    # rejection would be tried again, and fail.
    overtime: float = conf.getfloat("core", "task_success_overtime", fallback=20.0)
    return min(_MOST_SECONDS, 0.75 * overtime)


def _connection(entry: Notify) -> str:
    named = entry.settings.get("connection")
    return "" if named is None else f" by connection {named!r}"


class _Sending(threading.Thread):
    """A thread, for no notifier of others can be stopped. It ends with the process."""

    def __init__(self, entry: Notify, incident: Incident) -> None:
        super().__init__(name=f"notify-{entry.by}", daemon=True)
        self._entry, self._incident = entry, incident
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        tries = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_TRIES), wait=tenacity.wait_exponential(max=4), reraise=True
        )
        try:
            tries(sender(self._entry.by, self._entry.settings, "notify"), self._incident)
        except BaseException as error:  # handed to the task, which says it; one that exits ends nothing but itself
            self.error = error
