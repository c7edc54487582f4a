"""The connection of a client that waits for each answer."""

from __future__ import annotations

from types import TracebackType
from typing import Self, TypeVar

import httpx
import tenacity

from mlops.client.calls import Call
from mlops.client.following import is_stream
from mlops.client.session import Exchange, Session

T = TypeVar("T")


class Connection:
    """Sends requests, and tries those again that may pass."""

    def __init__(
        self, url: str, user: str | None = None, password: str | None = None, *, token: str | None = None
    ) -> None:
        self._session = Session(url, user, password, token)
        self._http = httpx.Client()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _do(self, call: Call[T]) -> T:
        return self._run(self._session.exchange(call))

    def _run(self, exchange: Exchange[T]) -> T:
        response: httpx.Response | None = None
        while True:
            try:
                request = next(exchange) if response is None else exchange.send(response)
            except StopIteration as done:
                answer: T = done.value
                return answer
            response = self._answered(request)

    def _answered(self, request: httpx.Request) -> httpx.Response:
        try:
            return tenacity.Retrying(**self._session.retrying(request))(self._send, request)
        except httpx.RequestError as error:
            raise self._session.unreachable(error) from error

    def _send(self, request: httpx.Request) -> httpx.Response:
        response = self._http.send(request, stream=True)
        self._session.has_answered = True
        if not is_stream(response):
            response.read()
        return response
