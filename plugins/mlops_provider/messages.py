"""Tell people: callbacks of Airflow's tasks that send messages of incidents."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import tenacity

from mlops_provider.incidents import Incident, incident_of
from mlops_provider.notifiers.named import sender
from mlops_provider.notify_spec import Event, Notify

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Logger

_TRIES: Final = 3
SECONDS: Final = 60.0
"""For which a task waits for its messages to be sent. A server that never answers must not keep it for long."""


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
        tell(self.notify, incident_of(self.event, context, self._message(context)), task.log)

    def _message(self, context: Context) -> str:
        error = context.get("exception")
        if self.event != "failed":
            return str(getattr(context["task"], "news", ""))
        if error is None:  # Airflow's DAG processor speaks for a process that cannot
            return "Its process was lost: killed, out of memory, or with its machine. The log shows how far it came."
        return str(error) or type(error).__name__


def tell(notify: Sequence[Notify], incident: Incident, log: Logger | logging.Logger) -> None:
    """Send an incident's message by each entry that wants it, all at once."""
    sending = {
        f"notify.{number} ({entry.by}{_connection(entry)})": _Sending(entry, incident)
        for number, entry in enumerate(notify)
        if incident.event in entry.on
    }
    end = time.monotonic() + SECONDS
    for place, thread in sending.items():
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            log.error("%s: the message was not sent within %g s: %s", place, SECONDS, incident.subject)
        elif thread.error is not None:
            log.error("%s: the message was not sent, %r: %s", place, thread.error, incident.subject)
        else:
            log.info("%s was sent: %s", place, incident.subject)


def _connection(entry: Notify) -> str:
    named = entry.settings.get("connection")
    return "" if named is None else f" by connection {named!r}"


class _Sending(threading.Thread):
    """A thread, for no notifier of others can be stopped. It ends with the process."""

    def __init__(self, entry: Notify, incident: Incident) -> None:
        super().__init__(name=f"notify-{entry.by}", daemon=True)
        self._entry, self._incident = entry, incident
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        tries = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_TRIES), wait=tenacity.wait_exponential(max=10), reraise=True
        )
        try:
            tries(sender(self._entry.by, self._entry.settings, "notify"), self._incident)
        except Exception as error:  # handed to the task, which says it
            self.error = error
