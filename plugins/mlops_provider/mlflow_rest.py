"""MLflow's REST API, as the airflow runtime asks it: without MLflow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Self

import httpx

from mlops.contract.outages import REFUSALS, FailureClass, classify_status
from mlops_provider.logins import Login


class MlflowError(RuntimeError):
    """MLflow cannot be reached, or answered with an error."""


class AwayError(MlflowError):
    """It does not answer, or is overloaded."""


class RefusedError(MlflowError):
    """It refuses what was asked, as a malformed name: asked again it would answer the same."""


class LoginError(RefusedError):
    """It does not know who asks, or does not permit it: a setting is wrong."""


@asynccontextmanager
async def client_of(login: Login | None) -> AsyncIterator[httpx.AsyncClient]:
    """Open what several requests may share: it takes 30 ms of processor time."""
    headers = login.headers if login else {}
    async with httpx.AsyncClient(timeout=10, auth=login and login.auth, headers=headers) as client:
        yield client


class MlflowReader:
    """A server, asked by one client."""

    purpose: ClassVar[str]
    """Of the login."""

    def __init__(self, uri: str, client: httpx.AsyncClient) -> None:
        self._uri, self._client = uri, client

    @classmethod
    @asynccontextmanager
    async def open(cls, uri: str, login: Login | None) -> AsyncIterator[Self]:
        """
        :param login: of the purpose
        """
        async with client_of(login) as client:
            yield cls(uri, client)

    async def _ask(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        """
        Return what the server answers.

        :param content: as :func:`httpx.request` takes it
        :raises MlflowError: where it cannot be reached, or refuses
        """
        response = await self._send(method, path, **content)
        check(response, self._uri, self.purpose)
        return document_of(response)

    async def _send(self, method: str, path: str, **content: Any) -> httpx.Response:
        return await send(self._client, self._uri, method, path, **content)


async def ask(tracking_uri: str, login: Login | None, method: str, path: str, **content: Any) -> httpx.Response:
    """
    Send a single request; for the parameters see :func:`send`.

    :raises AwayError: where the server cannot be reached
    """
    async with client_of(login) as client:
        return await send(client, tracking_uri, method, path, **content)


async def send(client: httpx.AsyncClient, tracking_uri: str, method: str, path: str, **content: Any) -> httpx.Response:
    """
    :param path: below ``/api/2.0/mlflow``
    :param content: as :func:`httpx.request` takes it
    :raises AwayError: where the server cannot be reached
    """
    try:
        return await client.request(method, f"{tracking_uri}/api/2.0/mlflow/{path}", **content)
    except httpx.UnsupportedProtocol as error:
        raise RefusedError(f"MLflow's address {tracking_uri!r} is none: {error}") from error
    except httpx.HTTPError as error:
        raise AwayError(f"MLflow at {tracking_uri} cannot be reached: {error!r}") from error


def check(response: httpx.Response, tracking_uri: str, purpose: str) -> None:
    """
    :param purpose: of the login that asked, for the message
    :raises MlflowError: where the answer is an error
    """
    if not response.is_error:
        return
    said = f"MLflow at {tracking_uri} answered {response.status_code}: {response.text[:200]}"
    if classify_status(response.status_code) is FailureClass.AWAY:
        raise AwayError(said)
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise LoginError(
            f"{said}; set [mlops] {purpose}_login to an Airflow connection with user and password of one who may"
        )
    # A proxy's page passes; what MLflow itself says of a request does not.
    if document_of(response).get("error_code") in REFUSALS:
        raise RefusedError(said)
    raise MlflowError(said)


def document_of(response: httpx.Response) -> dict[str, Any]:
    """Empty where the answer is something else, such as a proxy's page."""
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def field_of(response: httpx.Response, name: str, tracking_uri: str) -> dict[str, Any]:
    """:raises MlflowError: where an answer without an error lacks it, as another server's page does"""
    found = document_of(response).get(name)
    if not isinstance(found, dict):
        raise MlflowError(
            f"what answers at {tracking_uri} is not MLflow, or something stands between: {response.text[:200]!r}"
        )
    return found
