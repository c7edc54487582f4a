"""``/models/{name}/diff``: in what two versions of a model differ, by what the store has of their trainings."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Query
from obstore.store import ObjectStore
from starlette.concurrency import run_in_threadpool

from mlops.contract.refs import CheckpointRef, RefError, ReportRef
from mlops.contract.rest import TrainingDifference
from mlops.contract.step import BadConfigError
from mlops.contract.training_difference import ComparedTraining, differences, what_to_read
from mlops_provider.api.deployments import of_name, stored
from mlops_provider.api.models import Name, RegistryDep, find_version, report_of, tags_of
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.api.rights import rights
from mlops_provider.connections import store_of
from mlops_provider.gathering import gather
from mlops_provider.registry import PIPELINE_TAG

router = APIRouter(tags=["models"], responses=DOCUMENTED)

_PATCH: Final = "Files of the recipe differ. Who may read the DAG's code in Airflow sees how.\n"


@router.get("/models/{name}/diff")
async def difference(
    name: Name,
    registry: RegistryDep,
    user: GetUserDep,
    before: Annotated[str, Query(description="Number or alias of a version")],
    after: Annotated[str, Query(description="The same of another one")] = "champion",
) -> TrainingDifference:
    """
    In what two versions of a model differ: data, code, environment, parameters, metrics. The recipe's files are
    compared for those who may read the code of the pipeline's DAG.
    """
    versions = [await find_version(name, each, registry) for each in (before, after)]
    numbers = tuple(str(each["version"]) for each in versions)
    reports = [report_of(each) for each in versions]
    store = await of_name(name, store_of)
    try:
        one, other = await gather(lambda report: _read(store, report), reports)
    except (BadConfigError, RefError) as error:
        raise Problem(409, str(error)) from None
    # In a thread: files may be long.
    parts = await asyncio.to_thread(differences, one, other, (f"{name}/{numbers[0]}", f"{name}/{numbers[1]}"))
    pipelines = {tags_of(each)[PIPELINE_TAG] for each in versions}
    may = await run_in_threadpool(rights, list(pipelines), user)
    if not all(may(pipeline, "CODE") for pipeline in pipelines):
        parts = [part.model_copy(update={"patch": part.patch and _PATCH}) for part in parts]
    return TrainingDifference(before=numbers[0], after=numbers[1], parts=parts)


async def _read(store: ObjectStore, report: ReportRef) -> ComparedTraining:
    checkpoint = report.ancestor(CheckpointRef)
    artifacts = what_to_read(checkpoint)
    contents = await gather(lambda artifact: stored(store, artifact), artifacts)
    keys = [artifact.key for artifact in artifacts]
    return ComparedTraining.of(checkpoint, report, dict(zip(keys, contents, strict=True)))
