"""Errors of the API, as RFC 9457 has them: ``application/problem+json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from obstore.exceptions import BaseError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException

from mlops.contract.outages import store_cause
from mlops.contract.refs import VERSION_PATTERN
from mlops.contract.rest import MODEL_VERSION_PATTERN, PROBLEM_TYPE, ProblemDetails
from mlops.contract.section import EXPERIMENT_NAME_PATTERN, NAME_PATTERN, SpecError, requirement
from mlops_provider.exceptions import StepFailedError
from mlops_provider.mlflow_rest import MlflowError

Unread: TypeAlias = MlflowError | BaseError | StepFailedError | SpecError
"""Why nothing can be read of what a team has."""


class Problem(Exception):
    """What is answered in place of the result."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status

    @classmethod
    def of_airflow(cls, status: int, detail: str) -> Problem:
        """What Airflow refuses. It answers 403 to a token of before it was set up anew, which no right would help."""
        return cls(401 if status == 403 and "JWT" in detail else status, detail)


DOCUMENTED: Final[dict[int | str, dict[str, Any]]] = {
    status: {"description": HTTPStatus(status).phrase, "content": {PROBLEM_TYPE: {}}, "model": ProblemDetails}
    for status in (401, 403, 404, 409, 422, 502)
}
"""The errors that any request may meet, for the OpenAPI document."""


_EXPECTED: Final[Mapping[str, str]] = {
    VERSION_PATTERN: "the version of a snapshot or its beginning, six hexadecimal digits or more, such as 4f1f0c",
    NAME_PATTERN: "lower-case letters, digits and underscores, such as flight_ranking",
    EXPERIMENT_NAME_PATTERN: "lower-case letters, digits and underscores, 100 at most, such as more_layers",
    MODEL_VERSION_PATTERN: "the number of a version, such as 7",
}
"""What a text must be, by the pattern that it does not match: where a setting of a file has no words of its own."""


def sentence(found: ErrorDetails, place: Sequence[int | str]) -> str:
    """
    Say one of pydantic's findings about a request: the field, the value and what would do.

    :param place: of the field
    """
    name = ".".join(map(str, place)) or "body"
    kind, value = found["type"], found["input"]
    if kind == "missing":
        return f"{name}: it is missing"
    if kind == "extra_forbidden":
        return f"{name}: there is no such field; leave it out"
    if kind == "value_error":  # ours, and whole sentences
        return f"{name}: {found['msg'].removeprefix('Value error, ')}"
    if kind == "string_pattern_mismatch" and (wanted := _EXPECTED.get(str(found["ctx"]["pattern"]))):
        return f"{name} must be {wanted}, got {value!r:.100}"
    return f"{name} {requirement(found)}"


def _mistake(found: ErrorDetails, request: Request, body: Any) -> str:
    place = found["loc"][1:]
    if found["type"] == "json_invalid":
        before = str(body)[: int(place[0])]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        return f"body:{line}:{column}: it is no JSON: {found['ctx']['error']}"
    sent = request.headers.get("content-type", "")
    if found["loc"] == ("body",) and found["input"] is not None and "json" not in sent:
        return f"body: send it with the header Content-Type: application/json, which is {sent or 'missing'}"
    return sentence(found, place)


def outage(error: Unread) -> str:
    """Say in a sentence that MLflow or the store does not answer, refuses, or has no connection, or is set wrongly."""
    if not isinstance(error, BaseError):
        return str(error)
    return f"the store cannot be read: {store_cause(error)}"


def answer_problems(app: FastAPI) -> None:
    """Have an app answer each error so."""

    @app.exception_handler(Problem)
    async def problem(_: Request, error: Problem) -> JSONResponse:
        return _details(error.status, str(error))

    @app.exception_handler(SpecError)
    async def mistake(_: Request, error: SpecError) -> JSONResponse:
        return _details(422, str(error))

    @app.exception_handler(MlflowError)
    @app.exception_handler(BaseError)
    async def away(_: Request, error: MlflowError | BaseError) -> JSONResponse:
        return _details(502, outage(error))

    @app.exception_handler(StepFailedError)
    async def misconfigured(_: Request, error: StepFailedError) -> JSONResponse:  # a connection is missing, say
        return _details(500, str(error))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == HTTPStatus.BAD_REQUEST:  # bytes that are no text, or too deep
            return _details(422, "body: it is no JSON in UTF-8, or has a thousand levels within levels")
        said = Problem.of_airflow(error.status_code, str(error.detail))
        return _details(said.status, str(said), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return _details(422, "\n".join(_mistake(each, request, error.body) for each in error.errors()))

    @app.exception_handler(Exception)
    async def defect(_: Request, error: Exception) -> JSONResponse:  # the server logs where it comes from
        return _details(500, f"{type(error).__name__}: the API server's log says more")


def _details(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    found = ProblemDetails(title=HTTPStatus(status).phrase, status=status, detail=detail)
    return JSONResponse(found.model_dump(), status, headers=headers, media_type=PROBLEM_TYPE)
