"""What the server can be asked for of models, and of all pipelines: each request, and how its answer is read."""

from __future__ import annotations

from datetime import date
from secrets import token_hex
from typing import Any
from urllib.parse import quote

import httpx

from mlops.client.answers import (
    Models,
    ModelVersion,
    Nights,
    Progress,
    StageAnswer,
    StartedRun,
    Tonight,
    Verdict,
    VersionDifference,
)
from mlops.client.calls import AnyRun, Call, Page, as_header, as_started, body_of, id_of, instant, place
from mlops.client.reading import document, root_of
from mlops.contract import rest


def tonight() -> Call[Tonight]:
    def read(response: httpx.Response) -> Tonight:
        root = root_of(response)
        return Tonight(_addressed(each, root) for each in document(rest.Tonight, response).pipelines)

    return Call(method="GET", path="/tonight", read=read)


def nights(pipeline: str, most: int) -> Call[Nights]:
    def read(response: httpx.Response) -> Nights:
        root = root_of(response)
        return Nights(_night(each, root) for each in document(rest.Nights, response).nights)

    return Call(method="GET", path="/nights", params={"pipeline": pipeline, "limit": most}, read=read)


def verdict(run: AnyRun) -> Call[Verdict]:
    return Call(method="GET", path=f"{place(run)}/verdict", read=lambda response: document(Verdict, response))


def progress(run: AnyRun) -> Call[Progress]:
    def read(response: httpx.Response) -> Progress:
        return Progress(document(rest.RunProgress, response).trainings)

    return Call(method="GET", path=f"{place(run)}/progress", read=read)


def models() -> Call[Models]:
    return Call(method="GET", path="/models", read=lambda response: Models(document(rest.Models, response).models))


def model_versions(name: str, cursor: str) -> Call[Page[rest.ModelVersionSummary]]:
    def read(response: httpx.Response) -> Page[rest.ModelVersionSummary]:
        page = document(rest.ModelVersionPage, response)
        return Page(items=page.versions, next=page.next)

    return Call(method="GET", path=f"{_model(name)}/versions", params={"cursor": cursor}, read=read)


def model_version(name: str, version: str | int) -> Call[ModelVersion]:
    path = f"{_model(name)}/versions/{quote(str(version), safe='')}"
    return Call(method="GET", path=path, read=lambda response: document(ModelVersion, response))


def compare_versions(name: str, before: str | int, after: str | int) -> Call[VersionDifference]:
    return Call(
        method="GET",
        path=f"{_model(name)}/diff",
        params={"before": str(before), "after": str(after)},
        read=lambda response: document(VersionDifference, response),
    )


def register(model: str, run: AnyRun, training: str | None) -> Call[StartedRun]:
    return Call(
        method="POST",
        path=f"{_model(model)}/versions",
        body=body_of({"run": id_of(run), "training": training}),
        read=as_started,
    )


def register_artifact(
    model: str, uri: str, as_of: str | date | None, idempotency_key: str | None, **said: Any
) -> Call[StartedRun]:
    return Call(
        method="POST",
        path=f"{_model(model)}/versions",
        body=body_of({"artifact": {"uri": uri, "as_of": instant(as_of), **said}}),
        headers={"Idempotency-Key": as_header("idempotency_key", idempotency_key or token_hex(16))},
        read=as_started,
    )


def ask_stage(model: str, version: str | int, stage: str) -> Call[StageAnswer]:
    def read(response: httpx.Response) -> StageAnswer:
        found, root = document(StageAnswer, response), root_of(response)
        addresses = {"question": found.question, "airflow": found.airflow}
        return found.model_copy(update={name: at and root + at for name, at in addresses.items()})

    path = f"{_model(model)}/versions/{quote(str(version), safe='')}/stage"
    return Call(method="PUT", path=path, body=body_of({"stage": stage}), read=read)


def rollback(model: str, why: str, champion: str | int | None, idempotency_key: str | None) -> Call[StartedRun]:
    return Call(
        method="POST",
        path=f"{_model(model)}/rollback",
        body=body_of({"why": why, "champion": None if champion is None else str(champion)}),
        headers={"Idempotency-Key": as_header("idempotency_key", idempotency_key or token_hex(16))},
        read=as_started,
    )


def _night(night: rest.Night, root: str) -> rest.Night:
    judged = night.judged
    if judged is not None and judged.report is not None:
        judged = judged.model_copy(update={"report": root + judged.report})
    return night.model_copy(update={"airflow": root + night.airflow, "judged": judged})


def _addressed(pipeline: rest.PipelineTonight, root: str) -> rest.PipelineTonight:
    questions = [each.model_copy(update={"address": root + each.address}) for each in pipeline.questions]
    return pipeline.model_copy(update={"airflow": root + pipeline.airflow, "questions": questions})


def _model(name: str) -> str:
    return f"/models/{quote(name, safe='')}"
