"""Following a run by its stream, which may be cut: what was told is told once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Final

import httpx
from httpx_sse import ServerSentEvent, SSEError

from mlops.client.calls import AnyRun, Call, place
from mlops.client.errors import ClientError, RefusedError, UnreachableError
from mlops.contract.rest import Run, Value

PAUSE_SECONDS: Final = 2.0
"""After a stream was cut, before it is opened again."""
CUTS: Final = (httpx.TransportError, SSEError, UnreachableError, RefusedError)
"""What may end a stream before the run has ended; see :meth:`Position.check`."""
FIRST_LOOK_SECONDS: Final = 1.0
MOST_LOOK_SECONDS: Final = 10.0
"""Between two looks at a run that has nothing new to say."""
_SILENCE_SECONDS: Final = 60.0
"""Of a stream, which says every 15 s that it is there, before it counts as cut."""
PATIENCE_SECONDS: Final = 600.0
"""With a server that does not answer."""


class Position:
    """How far the stream of a run has been read."""

    def __init__(self, run: AnyRun) -> None:
        self.has_ended = False
        self._path = f"{place(run)}/metrics/stream"
        self._id = ""
        self._waiting: list[Value] = []
        self._heard = time.monotonic()

    def call(self) -> Call[httpx.Response]:
        """Open the stream where it was left; what came after the last id comes again."""
        self._waiting = []
        headers: Mapping[str, str] = {"Last-Event-ID": self._id} if self._id else {}
        return Call(method="GET", path=self._path, headers=headers, silence_seconds=_SILENCE_SECONDS, read=self._open)

    def _open(self, response: httpx.Response) -> httpx.Response:
        self._heard = time.monotonic()
        return response

    def read(self, event: ServerSentEvent) -> list[Value]:
        """
        Take an event.

        :return: the values that will not come again
        :raises ClientError: where the server says that nothing more comes
        """
        self._heard = time.monotonic()
        match event.event:
            case "value":
                self._waiting.append(Value.model_validate_json(event.data))
            case "end":
                self.has_ended = True
            case "problem":
                raise ClientError(json.loads(event.data)["detail"])
        # An event without an id of its own has that of the one before in its connection, or none.
        if event.id in ("", self._id) and not self.has_ended:
            return []
        self._id = event.id or self._id
        told, self._waiting = self._waiting, []
        return told

    def check(self, error: Exception) -> None:
        """:raises Exception: the error, where opening the stream again cannot help, or has not helped for long"""
        is_refused = isinstance(error, RefusedError) and error.status < httpx.codes.INTERNAL_SERVER_ERROR
        if is_refused or time.monotonic() > self._heard + PATIENCE_SECONDS:
            raise error


class Looks:
    """
    At a run that goes on, again and again.

    :param timeout_seconds: for how long; None: until it has ended
    """

    def __init__(self, timeout_seconds: float | None) -> None:
        self._deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._pause = FIRST_LOOK_SECONDS

    def pause(self, run: Run) -> float:
        """
        Return the seconds until the next look.

        :raises TimeoutError: where there is none
        """
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TimeoutError(f"{run.id} is {run.state} still; it goes on in Airflow: {run.airflow}")
        now, self._pause = self._pause, min(self._pause * 1.5, MOST_LOOK_SECONDS)
        return now
