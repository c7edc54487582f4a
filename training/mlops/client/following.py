"""Following a run by its stream, which may be cut: what was told is told once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import httpx
from httpx_sse import ServerSentEvent
from pydantic import ValidationError

from mlops.client import calls
from mlops.client.answers import Run
from mlops.client.calls import AnyRun, Call, place
from mlops.client.errors import ClientError, RefusedError, UnreachableError
from mlops.contract.rest import Value

PAUSE_SECONDS: Final = 2.0
"""After a stream was cut, before it is opened again."""
REOPEN_SECONDS: Final = 0.5
"""After one that has ended, as the server asks for."""
PATIENCE_SECONDS: Final = 600.0
"""With a server that does not answer any more."""
FIRST_LOOK_SECONDS: Final = 1.0
MOST_LOOK_SECONDS: Final = 10.0
"""Between two looks at a run that has nothing new to say."""
LAST_LOOK_SECONDS: Final = 5.0
"""For one look, however little time is left: by then a run may have ended."""
CUTS: Final = (httpx.TransportError, UnreachableError, RefusedError)
"""What may end a stream, or a look, before the run has ended; see :meth:`Patience.check`."""
_SILENCE_SECONDS: Final = 60.0
"""Of a stream, which says every 15 s that it is there, before it counts as cut."""
_MOST_AT_ONCE: Final = 200
"""Values that wait for an id."""


class Patience:
    """With a server that has answered before."""

    def __init__(self) -> None:
        self._heard: float | None = None

    def heard(self) -> None:
        self._heard = time.monotonic()

    def check(self, error: Exception) -> None:
        """:raises Exception: the error, where asking again cannot help, or has not helped for long"""
        is_refused = isinstance(error, RefusedError) and error.status < httpx.codes.INTERNAL_SERVER_ERROR
        if is_refused or self._heard is None or time.monotonic() > self._heard + PATIENCE_SECONDS:
            raise error


class Position(Patience):
    """How far the stream of a run has been read."""

    def __init__(self, run: AnyRun) -> None:
        super().__init__()
        self.has_ended = False
        self._path = f"{place(run)}/metrics/stream"
        self._id = ""
        self._told: set[tuple[str, str, int]] = set()
        self._waiting: list[Value] = []

    def call(self) -> Call[httpx.Response]:
        """Open the stream after the last id."""
        headers: Mapping[str, str] = {"Last-Event-ID": self._id} if self._id else {}
        # Compressed, what is new would wait until there is enough of it.
        headers = {"Accept-Encoding": "identity", **headers}
        return Call(method="GET", path=self._path, headers=headers, silence_seconds=_SILENCE_SECONDS, read=self._open)

    def _open(self, response: httpx.Response) -> httpx.Response:
        if not is_stream(response):
            raise ClientError(
                f"{response.request.url} answered no stream of events, but {response.text[:200]!r}: is there a proxy "
                "between that one has to log in at?"
            )
        if self._heard is None:
            self.heard()
        return response

    def read(self, event: ServerSentEvent) -> list[Value]:
        """
        Take an event.

        :return: what is new by now; empty where more of it comes at once
        :raises UnreachableError: where the server says that nothing comes for now
        :raises ClientError: where it says that nothing more comes
        """
        match event.event:
            case "value":
                value = _value(event.data)
                self.heard()
                # After a cut, what came after the last id comes again.
                if (point := (value.run, value.metric, value.step)) not in self._told:
                    self._told.add(point)
                    self._waiting.append(value)
            case "end":
                self.has_ended = True
            case "away":
                raise UnreachableError(json.loads(event.data)["detail"])
            case "problem":
                raise ClientError(json.loads(event.data)["detail"])
        # An event without an id of its own has that of the one before in its connection, or none.
        has_id = event.id not in ("", self._id)
        self._id = event.id or self._id
        return self.rest() if has_id or len(self._waiting) >= _MOST_AT_ONCE else []

    def rest(self) -> list[Value]:
        """Return what is new, where the stream has ended."""
        new, self._waiting = self._waiting, []
        return new


class Looks(Patience):
    """
    At a run that goes on, again and again.

    :param run: its id
    :param has_answered: whether there is a server
    :param timeout_seconds: for how long; None: until it has ended
    """

    def __init__(self, run: AnyRun, has_answered: bool, timeout_seconds: float | None = None) -> None:
        super().__init__()
        if has_answered:
            self.heard()
        self._call = calls.run(run)
        self._said = f"{run if isinstance(run, str) else run.id} has not ended yet; it goes on in Airflow"
        self._deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._pause = FIRST_LOOK_SECONDS

    def has_news(self) -> None:
        """Look again soon."""
        self._pause = FIRST_LOOK_SECONDS

    def call(self) -> Call[Run]:
        """Return the next look, for which there is no more time than is left."""
        if self._deadline is None:
            return self._call
        return replace(self._call, most_seconds=max(self._deadline - time.monotonic(), LAST_LOOK_SECONDS))

    def pause(self, error: Exception | None = None) -> float:
        """
        Return the seconds until the next look.

        :param error: that the last one ended in
        :raises TimeoutError: where there is no next one
        :raises Exception: the error, as :meth:`check` does
        """
        left = None if self._deadline is None else self._deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError(self._said) from error
        if error is None:
            self.heard()
        else:
            self.check(error)
        now, self._pause = self._pause, min(self._pause * 1.5, MOST_LOOK_SECONDS)
        return now if left is None else min(now, left)


def _value(data: str) -> Value:
    try:
        return Value.model_validate_json(data)
    except ValidationError as error:
        raise ClientError(f"the stream told {data[:200]!r}, which is no value of this client: {error}") from None


def is_stream(response: httpx.Response) -> bool:
    """Whether an answer goes on for as long as there is something to tell."""
    return str(response.headers.get("content-type", "")).startswith("text/event-stream")
