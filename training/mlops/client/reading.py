"""How an answer is read, and what is said of one that cannot be."""

from __future__ import annotations

from typing import Final, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from mlops.client.errors import ClientError, RefusedError
from mlops.contract import rest
from mlops.contract.addresses import API_PREFIX
from mlops.contract.rest import PROBLEM_TYPE

ModelT = TypeVar("ModelT", bound=BaseModel)
_MOST_QUOTED: Final = 300
"""Characters of an answer."""


def check(response: httpx.Response) -> None:
    """
    :raises RefusedError: with the server's own words, where the answer is an error
    """
    check_place(response)
    if not response.is_error:
        return
    said = f"{response.request.method} {response.request.url} answered {response.status_code}: "
    detail = problem_of(response) or said + response.text[:_MOST_QUOTED]
    raise RefusedError(response.status_code, detail)


def check_place(response: httpx.Response) -> None:
    """:raises RefusedError: where what was asked for is elsewhere"""
    if response.has_redirect_location:
        address = response.headers["Location"]
        raise RefusedError(
            response.status_code,
            f"{response.request.url} is at {address} now: give the address that leads there, or log in at the proxy "
            "between",
        )


def problem_of(response: httpx.Response) -> str | None:
    """What the API itself says of an error; None where it is another server's answer, such as a proxy's."""
    if not response.headers.get("content-type", "").startswith(PROBLEM_TYPE):
        return None
    try:
        return rest.ProblemDetails.model_validate_json(response.content).detail
    except ValidationError:
        return None


def document(kind: type[ModelT], response: httpx.Response) -> ModelT:
    """:raises ClientError: where it is none, as another server's page is"""
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise misread(kind.__name__, response, f"{where or 'document'}: {first['msg']}") from None


def misread(what: str, response: httpx.Response, why: str) -> ClientError:
    return ClientError(
        f"{response.request.url} answered what is no {what} of this client ({why}): is it an Airflow with this "
        f"provider, of the client's own release? It began {response.text[:_MOST_QUOTED]!r}"
    )


def with_address(found: ModelT, response: httpx.Response) -> ModelT:
    """:param found: with the address of a page, as ``airflow``"""
    page = found.model_dump(include={"airflow"})["airflow"]
    return found.model_copy(update={"airflow": root_of(response) + page})


def root_of(response: httpx.Response) -> str:
    """Airflow's address."""
    return str(response.request.url).partition(API_PREFIX)[0]
