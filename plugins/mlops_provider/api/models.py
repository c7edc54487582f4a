"""
``/models``: the versions that pipelines have registered. A model is the pipeline's that has registered its newest
version, and is shown to whoever may read that pipeline's DAG.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query

from mlops.contract.refs import ReportRef
from mlops.contract.rest import Model, Models, ModelVersion, ModelVersionPage, ModelVersionSummary
from mlops.contract.section import NAME_PATTERN
from mlops.contract.stages import STAGE_TAG
from mlops_provider.api.airflow import AirflowDep, readable_dags
from mlops_provider.api.deployments import Mlflow, found_by_team, of_name
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.deployment import tenant_of_name
from mlops_provider.gathering import gather
from mlops_provider.registry import PIPELINE_TAG, REF_TAG, VERSION_TAG, Registry

router = APIRouter(tags=["models"], responses=DOCUMENTED)

MOST_VERSIONS: Final = 100
"""In one answer."""

Name = Annotated[str, Path(pattern=NAME_PATTERN)]


async def _registry(name: Name, airflow: AirflowDep) -> AsyncIterator[Registry]:
    """:raises Problem: where there is no such model that the asker may read"""
    async with Registry.open(*await of_name(name, Mlflow.of_reader)) as registry:
        pipeline = await pipeline_of_model(name, registry)
        if pipeline is None or await airflow.found(f"/dags/{pipeline}", hides=True) is None:
            raise Problem(404, f"there is no model {name!r}: see GET /models")
        yield registry


RegistryDep = Annotated[Registry, Depends(_registry)]


async def pipeline_of_model(model: str, registry: Registry) -> str | None:
    """The pipeline whose model it is; None where it is none's, or another team's than its name says."""
    if not re.fullmatch(NAME_PATTERN, model):
        return None
    newest = await registry.versions(model, 1)
    pipeline = tags_of(newest[0])[PIPELINE_TAG] if newest else None
    # Whoever may write to MLflow may have set the tag, to anything.
    if pipeline is None or not re.fullmatch(NAME_PATTERN, pipeline):
        return None
    return pipeline if tenant_of_name(model) == tenant_of_name(pipeline) else None


@router.get("/models")
async def models(airflow: AirflowDep) -> Models:
    """List the models of the pipelines that the asker may read."""
    readable = await readable_dags(airflow)

    async def of_team(team: str | None, mlflow: Mlflow) -> list[Model]:
        async with Registry.open(*mlflow) as registry:
            registered = [each for each in await registry.models() if tenant_of_name(each["name"]) == team]
            pipelines = await gather(
                partial(pipeline_of_model, registry=registry), [each["name"] for each in registered]
            )
        return [
            Model(name=each["name"], pipeline=pipeline, aliases=aliases_of(each))
            for each, pipeline in zip(registered, pipelines, strict=True)
            if pipeline is not None and pipeline in readable
        ]

    found, unreachable = await found_by_team(readable, Mlflow.of_reader, of_team)
    return Models(models=found, unreachable=unreachable)


@router.get("/models/{name}/versions")
async def versions(
    name: Name,
    registry: RegistryDep,
    limit: Annotated[int, Query(ge=1, le=MOST_VERSIONS)] = MOST_VERSIONS,
    cursor: Annotated[str, Query(pattern=r"^\d{0,18}$", description="The `next` of the page before")] = "",
) -> ModelVersionPage:
    """List the versions of a model that pipelines have registered, the newest first."""
    page = await registry.versions(name, limit + 1, below=int(cursor) if cursor else None)
    found = [version_summary(each) for each in page[:limit]]
    return ModelVersionPage(versions=found, next=found[-1].version if len(page) > limit else None)


@router.get("/models/{name}/versions/{version}")
async def version(name: Name, version: str, registry: RegistryDep) -> ModelVersion:
    """A version, by its number or an alias such as `champion`: its lineage back to the snapshot."""
    found = await find_version(name, version, registry)
    report = report_of(found)
    lineage = [ref.to_wire() for ref in report.lineage()][::-1]
    digests = {a["key"]: a["sha256"] for link in lineage for a in link.pop("artifacts").values()}
    for link in lineage:
        link.pop("parent", None)
    return ModelVersion(
        **version_summary(found).model_dump(),
        git_commit=tags_of(found).get("mlops.git_commit"),
        artifact_sha256=digests,
        lineage=lineage,
    )


async def find_version(name: str, version: str, registry: Registry) -> Mapping[str, Any]:
    """
    Find a version, as MLflow has it.

    :param version: its number or an alias
    :raises Problem: where there is none that a pipeline has registered
    """
    number = version.lstrip("0") if version.isascii() and version.isdecimal() else None
    if number is None:
        number = aliases_of(await registry.model(name)).get(version)
    # Compared as text: Python makes no number of thousands of digits.
    page = await registry.versions(name, 1, below=int(number[:18]) + 1) if number else []
    if not page or str(page[0]["version"]) != number:
        raise Problem(404, f"there is no version {version!r:.100} of {name!r}: see GET /models/{name}/versions")
    return page[0]


def version_summary(found: Mapping[str, Any]) -> ModelVersionSummary:
    tags, report = tags_of(found), _report(found)
    return ModelVersionSummary(
        name=found["name"],
        version=str(found["version"]),
        semantic_version=tags.get(VERSION_TAG),
        pipeline=tags[PIPELINE_TAG],
        stage=tags.get(STAGE_TAG),
        registered_at=datetime.fromtimestamp(int(found["creation_timestamp"]) / 1000, UTC),
        reason=found.get("description", ""),
        metrics=None if report is None else dict(report.metrics),
        dataset_version=tags.get("mlops.dataset_version", ""),
        tracking_run=found.get("run_id", ""),
    )


def report_of(found: Mapping[str, Any]) -> ReportRef:
    """:raises Problem: where it cannot be read"""
    report = _report(found)
    if report is None:
        name, number = found["name"], found["version"]
        raise Problem(500, f"tag {REF_TAG} of version {number} of {name!r} is no lineage: somebody has changed it")
    return report


def _report(found: Mapping[str, Any]) -> ReportRef | None:
    """The lineage of a version; None where its tag is none."""
    try:
        return ReportRef.from_wire(json.loads(tags_of(found)[REF_TAG]))
    except (KeyError, TypeError, ValueError):
        return None


def tags_of(found: Mapping[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in found.get("tags", [])}


def aliases_of(registered: Mapping[str, Any]) -> dict[str, str]:
    return {each["alias"]: str(each["version"]) for each in registered.get("aliases", [])}
