"""What the server can be asked for: each request, and how its answer is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from mlops.client.answers import Curves, Run, RunSummary
from mlops.client.errors import ClientError, RefusedError
from mlops.contract import rest
from mlops.contract.rest import API_PREFIX, PROBLEM_TYPE

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)
AnyRun = str | rest.RunSummary
"""A run, or its id."""
REQUEST_SECONDS: Final = 300.0
"""For one answer, of a machine that has much else to do."""
_MOST_QUOTED: Final = 300
"""Characters of an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call(Generic[T]):
    """A request of the API."""

    method: str
    path: str
    """Below :data:`mlops.contract.rest.API_PREFIX`."""
    read: Callable[[httpx.Response], T]
    """Of an answer without an error."""
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    silence_seconds: float = REQUEST_SECONDS
    """Without a byte, after which the answer counts as cut."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Of a list of runs."""

    runs: Sequence[RunSummary]
    next: str | None
    """Its cursor; None: this was the last one."""


def submit(
    pipeline: str,
    settings: Mapping[str, Any] | None,
    as_of: str | None,
    until: str | None,
    seeds: int | None,
    sample: float | None,
    name: str | None,
    idempotency_key: str | None,
) -> Call[RunSummary]:
    # Checked by the server, and not here: it may have come to take what an old client does not know.
    asked = {"settings": settings, "as_of": as_of, "until": until, "seeds": seeds, "sample": sample, "name": name}
    return Call(
        method="POST",
        path="/runs",
        body={"pipeline": pipeline, **{key: value for key, value in asked.items() if value is not None}},
        headers={"Idempotency-Key": idempotency_key or token_hex(16)},
        read=lambda response: _with_address(_document(RunSummary, response), response),
    )


def run(of: AnyRun) -> Call[Run]:
    return Call(method="GET", path=place(of), read=lambda response: _with_address(_document(Run, response), response))


def runs(pipeline: str | None, kind: str, user: str | None, state: str | None, cursor: str) -> Call[Page]:
    asked = {"pipeline": pipeline, "kind": kind, "user": user, "state": state, "cursor": cursor}

    def read(response: httpx.Response) -> Page:
        page = _document(rest.Runs, response)
        found = (RunSummary.model_validate(each.model_dump()) for each in page.runs)
        return Page(runs=[_with_address(each, response) for each in found], next=page.next)

    params = {key: value for key, value in asked.items() if value is not None}
    return Call(method="GET", path="/runs", params=params, read=read)


def cancel(of: AnyRun) -> Call[RunSummary]:
    return Call(
        method="DELETE",
        path=place(of),
        read=lambda response: _with_address(_document(RunSummary, response), response),
    )


def logs(of: AnyRun, task: str | None, try_number: int | None, map_index: int) -> Call[str]:
    asked = {"task": task, "try_number": try_number, "map_index": map_index}
    params = {key: value for key, value in asked.items() if value is not None}
    return Call(method="GET", path=f"{place(of)}/logs", params=params, read=lambda response: response.text)


def curves(of: AnyRun, metrics: Sequence[str], points: int | None) -> Call[Curves]:
    params = {"metric": list(metrics), **({} if points is None else {"points": points})}
    return Call(
        method="GET",
        path=f"{place(of)}/metrics",
        params=params,
        read=lambda response: Curves(_document(rest.Curves, response).curves),
    )


def place(of: AnyRun) -> str:
    """Where the API has a run."""
    run_id = of if isinstance(of, str) else of.id
    return f"/runs/{quote(run_id, safe='@')}"


def check(response: httpx.Response) -> None:
    """
    :raises RefusedError: with the server's own words, where the answer is an error
    """
    if not response.is_error:
        return
    said = f"{response.request.method} {response.request.url} answered {response.status_code}: "
    detail = problem_of(response) or said + response.text[:_MOST_QUOTED]
    raise RefusedError(response.status_code, detail)


def problem_of(response: httpx.Response) -> str | None:
    """What the API itself says of an error; None where it is another server's answer, such as a proxy's."""
    if not response.headers.get("content-type", "").startswith(PROBLEM_TYPE):
        return None
    return _document(rest.ProblemDetails, response).detail


def _document(kind: type[ModelT], response: httpx.Response) -> ModelT:
    """:raises ClientError: where it is none, as another server's page is"""
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ClientError(
            f"{response.request.url} answered what is no {kind.__name__} of this client ({where or 'document'}: "
            f"{first['msg']}): is it an Airflow with this provider, of the client's own release? It began "
            f"{response.text[:_MOST_QUOTED]!r}"
        ) from None


SummaryT = TypeVar("SummaryT", bound=rest.RunSummary)


def _with_address(found: SummaryT, response: httpx.Response) -> SummaryT:
    url = str(response.request.url).partition(API_PREFIX)[0]
    return found.model_copy(update={"airflow": url + found.airflow})
