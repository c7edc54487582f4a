"""A server, and who asks it: the requests of a call one after the other, whoever sends them."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Final, TypeVar

import httpx
import tenacity

from mlops.client.calls import REQUEST_SECONDS, Call, check, problem_of
from mlops.client.errors import ClientError, RefusedError, UnreachableError
from mlops.contract.rest import API_PREFIX

T = TypeVar("T")

_ATTEMPTS: Final = 5
FIRST_PAUSE_SECONDS: Final = 0.5
_MOST_PAUSE_SECONDS: Final = 30.0
_PASSING: Final = frozenset({502, 503, 504})
"""What a proxy answers while the server is started anew."""


class Session:
    """
    :param url: root of Airflow's API server, such as ``http://127.0.0.1:8080``
    :param user: of Airflow; None where it lets everybody in, or a token is given
    :param password: of the user
    :param token: of Airflow's API, where somebody else has logged in
    """

    def __init__(self, url: str, user: str | None, password: str | None, token: str | None) -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ClientError(f"Airflow's address {url!r}: write it as your browser shows it, http://HOST:PORT")
        if token is not None and user is not None:
            raise ClientError("a token says who you are: leave user and password out")
        if (user is None) != (password is None):
            raise ClientError("give both user and password, or none where Airflow lets everybody in")
        self._login = None if user is None else {"username": user, "password": password}
        self._token = token
        self._is_given = token is not None

    def exchange(self, call: Call[T]) -> Generator[httpx.Request, httpx.Response, T]:
        """
        Yield the requests of a call, each to be answered; log in first where that is due.

        :raises ClientError: where the server refuses
        """
        yield from self._log_in()
        response = yield self._request(call)
        if response.status_code == httpx.codes.UNAUTHORIZED and self._forgets_token():
            yield from self._log_in()
            response = yield self._request(call)
        check(response)
        return call.read(response)

    def _log_in(self) -> Generator[httpx.Request, httpx.Response, None]:
        """
        Yield the request of a token, where there is none.

        :raises RefusedError: where Airflow does not let the user in
        """
        if self._token is not None:
            return
        method, address = ("GET" if self._login is None else "POST"), f"{self.url}/auth/token"
        response = yield httpx.Request(method, address, json=self._login, extensions=_extensions(REQUEST_SECONDS))
        try:
            token = response.json()["access_token"] if response.is_success else None
        except (ValueError, KeyError, TypeError):
            token = None
        if isinstance(token, str):
            self._token = token
            return
        if response.is_success or response.status_code == httpx.codes.NOT_FOUND:
            raise ClientError(f"{address} gives no token: is {self.url} the address of an Airflow?")
        if self._login is None:
            raise RefusedError(response.status_code, f"{self.url} asks who you are: give user and password, or a token")
        who = self._login["username"]
        raise RefusedError(
            response.status_code, f"{self.url} does not let {who!r} in with this password: {response.text[:200]}"
        )

    def _request(self, call: Call[Any]) -> httpx.Request:
        return httpx.Request(
            call.method,
            f"{self.url}{API_PREFIX}{call.path}",
            params=call.params,
            json=call.body,
            headers={**call.headers, "Authorization": f"Bearer {self._token}"},
            extensions=_extensions(call.silence_seconds),
        )

    def _forgets_token(self) -> bool:
        """Forget a token that is not taken any more; False where the person has given it, and has to give another."""
        if self._is_given:
            return False
        self._token = None
        return True

    def unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(f"Airflow at {self.url} cannot be reached: {error or type(error).__name__}")


def retrying(request: httpx.Request) -> Mapping[str, Any]:
    """How often a request is sent, for tenacity: again where it got no answer, if that cannot do harm."""
    # The second time it would find that the run has ended.
    attempts = 1 if request.method == "DELETE" else _ATTEMPTS
    return {
        "retry": tenacity.retry_if_exception_type(httpx.TransportError) | tenacity.retry_if_result(_is_passing),
        "stop": tenacity.stop_after_attempt(attempts),
        "wait": tenacity.wait_exponential_jitter(
            initial=FIRST_PAUSE_SECONDS, jitter=FIRST_PAUSE_SECONDS, max=_MOST_PAUSE_SECONDS
        ),
        "retry_error_callback": lambda state: state.outcome.result(),
    }


def is_stream(response: httpx.Response) -> bool:
    """Whether an answer goes on for as long as there is something to tell."""
    return str(response.headers.get("content-type", "")).startswith("text/event-stream")


def _is_passing(response: httpx.Response) -> bool:
    return response.status_code in _PASSING and problem_of(response) is None


def _extensions(seconds: float) -> dict[str, Any]:
    return {"timeout": httpx.Timeout(REQUEST_SECONDS, read=seconds).as_dict()}
