"""A server, and who asks it: the requests of a call one after the other, whoever sends them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, Literal, TypeVar

import httpx
import tenacity
from tenacity.retry import retry_base

from mlops.client.calls import REQUEST_SECONDS, Call, Page, as_header
from mlops.client.errors import ClientError, RefusedError, UnreachableError
from mlops.client.reading import check, check_place, problem_of
from mlops.contract.addresses import API_PREFIX

T = TypeVar("T")
Exchange = Generator[httpx.Request, httpx.Response, T]
"""Requests, each to be answered, and what they come to."""
State = Literal["queued", "running", "success", "failed"]

_CONNECT_SECONDS: Final = 10.0
_ATTEMPTS: Final = 5
_FIRST_ATTEMPTS: Final = 2
_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout)
_UNANSWERED: Final = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError)
_HEADERS: Final = {"User-Agent": "mlops-client", "Accept": "*/*", "Accept-Encoding": "gzip, deflate"}
FIRST_PAUSE_SECONDS: Final = 0.5
_MOST_PAUSE_SECONDS: Final = 30.0
_NOT_LET_IN: Final = frozenset({400, 401, 403, 405, 422})
_MOST_SECONDS: Final = "mlops.most_seconds"
"""Name of what a request says to :meth:`Session.retrying`."""
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
        self.url = url.strip().rstrip("/")
        try:
            address = httpx.URL(self.url)
        except (httpx.InvalidURL, ValueError):
            address = httpx.URL()
        if address.userinfo:
            raise ClientError(f"Airflow's address at {address.host}: give user and password beside it, not within")
        if address.scheme not in ("http", "https") or not address.host or address.query or address.fragment:
            raise ClientError(f"Airflow's address {url!r}: write it as your browser shows it, http://HOST:PORT")
        if token is not None and user is not None:
            raise ClientError("a token says who you are: leave user and password out")
        if (user is None) != (password is None):
            raise ClientError("give both user and password, or none where Airflow lets everybody in")
        self._login = None if user is None else {"username": user, "password": password}
        self._token = None if token is None else as_header("token", token)
        self.has_answered = False
        """Whether there is a server: one that has never answered is not waited for."""
        self._is_given = token is not None

    def exchange(self, call: Call[T]) -> Exchange[T]:
        """
        Yield the requests of a call, each to be answered; log in first where that is due.

        :raises ClientError: where the server refuses
        """
        yield from self._log_in(call.most_seconds)
        response = yield self._request(call)
        if response.status_code == httpx.codes.UNAUTHORIZED and self._forgets_token():
            yield from self._log_in(call.most_seconds)
            response = yield self._request(call)
        check(response)
        return call.read(response)

    def listing(self, page: Callable[[str], Call[Page[T]]], most: int) -> Exchange[list[T]]:
        """
        Yield the requests of a list, page by page.

        :param page: the call of the page of a cursor
        :param most: items
        :raises ClientError: where the server refuses
        """
        found: list[T] = []
        cursor: str | None = ""
        while cursor is not None and len(found) < most:
            answer = yield from self.exchange(page(cursor))
            found += answer.items
            cursor = answer.next
        return found[:most]

    def _log_in(self, most_seconds: float) -> Exchange[None]:
        """
        Yield the request of a token, where there is none.

        :raises RefusedError: where Airflow does not let the user in
        """
        if self._token is not None:
            return
        method, address = ("GET" if self._login is None else "POST"), f"{self.url}/auth/token"
        response = yield httpx.Request(
            method, address, headers=_HEADERS, json=self._login, extensions=_extensions(REQUEST_SECONDS, most_seconds)
        )
        try:
            token = response.json()["access_token"] if response.is_success else None
        except (ValueError, KeyError, TypeError):
            token = None
        if not isinstance(token, str):
            check_place(response)
            raise self._not_let_in(response)
        self._token = as_header("token", token)

    def _not_let_in(self, response: httpx.Response) -> ClientError:
        address, status = response.request.url, response.status_code
        is_json = "json" in response.headers.get("content-type", "")
        if response.is_success or status == httpx.codes.NOT_FOUND or (status in _NOT_LET_IN and not is_json):
            return ClientError(f"{address} gives no token: is {self.url} the address of an Airflow?")
        if status not in _NOT_LET_IN:
            return RefusedError(status, f"{address} answered {status}: {response.text[:200]}")
        if self._login is None:
            return RefusedError(status, f"{self.url} asks who you are: give user and password, or a token")
        who = self._login["username"]
        return RefusedError(status, f"{self.url} does not let {who!r} in with this password: {response.text[:200]}")

    def _request(self, call: Call[Any]) -> httpx.Request:
        return httpx.Request(
            call.method,
            f"{self.url}{API_PREFIX}{call.path}",
            params=call.params,
            json=call.body,
            headers={**_HEADERS, **call.headers, "Authorization": f"Bearer {self._token}"},
            extensions=_extensions(call.silence_seconds, call.most_seconds),
        )

    def _forgets_token(self) -> bool:
        """Forget a token that is not taken any more; False where the person has given it, and has to give another."""
        if self._is_given:
            return False
        self._token = None
        return True

    def unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(f"Airflow at {self.url} cannot be reached: {str(error) or type(error).__name__}")

    def retrying(self, request: httpx.Request) -> Mapping[str, Any]:
        """How often a request is sent, for tenacity: again where it got no answer, if that cannot do harm."""
        # Had the first one arrived, the second would find that the run has ended.
        kinds = _UNSENT if request.method == "DELETE" else _UNANSWERED
        again: retry_base = tenacity.retry_if_exception_type(kinds)
        if request.method != "DELETE":
            again = again | tenacity.retry_if_result(_is_passing)
        return {
            "retry": again,
            "stop": tenacity.stop_after_attempt(_ATTEMPTS if self.has_answered else _FIRST_ATTEMPTS)
            | tenacity.stop_after_delay(request.extensions[_MOST_SECONDS]),
            "wait": tenacity.wait_exponential(multiplier=FIRST_PAUSE_SECONDS, max=_MOST_PAUSE_SECONDS)
            + tenacity.wait_random(0, FIRST_PAUSE_SECONDS),
            "retry_error_callback": lambda state: state.outcome.result(),
        }


def _is_passing(response: httpx.Response) -> bool:
    return response.status_code in _PASSING and problem_of(response) is None


def _extensions(silence_seconds: float, most_seconds: float) -> dict[str, Any]:
    connect, read = (min(each, most_seconds) for each in (_CONNECT_SECONDS, silence_seconds))
    timeout = httpx.Timeout(REQUEST_SECONDS, connect=connect, read=read)
    return {"timeout": timeout.as_dict(), _MOST_SECONDS: most_seconds}
