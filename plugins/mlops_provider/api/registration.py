"""
What is to be registered: a training of an experiment, or weights that were trained elsewhere. A run of the pipeline's
own DAG judges it by the pipeline's gate, and asks the approvers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import obstore
from fastapi import APIRouter

from mlops.contract.rest import FINISHED, GivenArtifact, NewVersion, StartedRun
from mlops.contract.section import check_section
from mlops.contract.sections.train import Train
from mlops.contract.step import used_key
from mlops_provider.adoption import Adoption, NobodyApprovesError, check_approved, is_named
from mlops_provider.api.airflow import Airflow
from mlops_provider.api.deployments import Mlflow, of_name
from mlops_provider.api.idempotency import RunOnce
from mlops_provider.api.models import Name, pipeline_of_model
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.api.runs import find_run, result_of
from mlops_provider.api.started import ANSWERED, Release, ReleaseDep
from mlops_provider.api.submission import text_of_pipeline
from mlops_provider.committed import DAMAGED, read_committed
from mlops_provider.connections import store_of
from mlops_provider.experiments.names import tried_out
from mlops_provider.experiments.request import Request
from mlops_provider.operators import judged_weights
from mlops_provider.operators.adopted import PARAM, WEIGHTS, pipeline_of
from mlops_provider.registry import Registry
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import changed_pipeline

router = APIRouter(tags=["releases"], responses=DOCUMENTED)

_PREFIX: Final = "weights__"
_ANY_DIGEST: Final = "0" * 64


@router.post("/models/{name}/versions", status_code=202, responses=ANSWERED)
async def register(name: Name, asked: NewVersion, asking: ReleaseDep) -> StartedRun:
    """
    Have the pipeline judge a training of an experiment, or weights that were trained elsewhere: a run of its own DAG
    evaluates it, registers it if it passes, and asks the approvers. The same training is the same run, however often it
    is asked for; weights are judged again, but for requests with one `Idempotency-Key`.
    """
    if asked.artifact is not None:
        return await judge_artifact(name, asked.artifact, asking)
    assert asked.run is not None, "one of both is given"
    airflow = asking.airflow
    run = await find_run(asked.run, airflow)
    pipeline = tried_out(run["dag_id"])
    if pipeline is None:
        raise Problem(422, f"run {asked.run}: it is no experiment; what a night trains, the night registers itself")
    await _spec_of_model(name, pipeline, airflow)
    place = _chosen(asked, await _trainings(asked.run, run, airflow))
    if pipeline_of(place) not in (None, pipeline):  # who may edit XComs may have named any place
        raise Problem(422, f"run {asked.run}: {place} is no training of {pipeline}")
    store = await of_name(pipeline, store_of)
    try:
        committed = await read_committed(store, place)
    except DAMAGED:
        raise Problem(409, f"{place} is damaged: mlops store verify says what else") from None
    adoption = Adoption.of(place, committed)
    dag = await _judging_dag(pipeline, PARAM, airflow)
    once = RunOnce(dag_id=pipeline, run_id=adoption.run_id, conf=adoption.conf)
    if (before := await once.before(airflow)) is not None:
        return asking.started(before, False, dag)
    await asking.check_may_trigger(pipeline)
    # Until it is judged, `mlops runs expire` leaves it.
    await obstore.put_async(store, used_key(place), b"")
    return asking.started(*await once.trigger(airflow), dag)


async def judge_artifact(
    model: str, artifact: GivenArtifact, asking: Release, place: str = "../../runs", named: str = "artifact.uri"
) -> StartedRun:
    """
    Start the run that judges weights that were trained elsewhere.

    :param place: where runs lie, seen from the request's address
    :param named: what the request calls the file's address, for messages
    :raises SpecError: where the weights lie where nothing may be read, or the pipeline takes none
    """
    airflow = asking.airflow
    pipeline = artifact.pipeline or await _pipeline_of(model, airflow)
    spec = await _spec_of_model(model, pipeline, airflow)
    given = {"path": artifact.uri, "sha256": artifact.sha256, "known_as": artifact.version, "claimed": artifact.metrics}
    end = None
    if artifact.as_of is not None:  # what a run works on that has no schedule is what had ended by then
        end = Request(changes={}, as_of=artifact.as_of, is_remote=True).interval(spec, datetime.now(UTC))[1]
        given["as_of"] = end.isoformat()
    given = {name: value for name, value in given.items() if value}
    dag = await _judging_dag(pipeline, WEIGHTS, airflow)
    once = asking.once(pipeline, _PREFIX, {WEIGHTS: given})
    # Not checked again: where weights may lie may have changed since.
    if (before := await once.before(airflow)) is not None:
        return asking.started(before, False, dag, place)
    weights = await of_name(pipeline, lambda deployment: judged_weights.checked(given, deployment, named))
    train = spec.train.model_dump(mode="json")
    check_section(Train, train | weights.start(artifact.sha256 or _ANY_DIGEST), "artifact: train")
    return asking.started(*await once.trigger(airflow, end), dag, place)


async def _judging_dag(pipeline: str, parameter: str, airflow: Airflow) -> Mapping[str, Any]:
    """
    Return the DAG of a pipeline, with its parameters.

    :param parameter: by which a run is told what it is to judge
    :raises Problem: where it can put into production what nobody has agreed to
    """
    dag = await airflow.found(f"/dags/{pipeline}/details")
    try:
        return check_approved(pipeline, dag, parameter)
    except NobodyApprovesError as error:
        raise Problem(409, str(error)) from None


async def spec_of(name: str, airflow: Airflow) -> Pipeline:
    """:raises Problem: where the pipeline has no file that the asker may read"""
    # It reads YAML: nothing for the event loop.
    return await asyncio.to_thread(changed_pipeline, await text_of_pipeline(name, airflow), name, {}, "settings")


async def _spec_of_model(model: str, pipeline: str, airflow: Airflow) -> Pipeline:
    """:raises Problem: where it is not this pipeline that registers the model"""
    spec = await spec_of(pipeline, airflow)
    if (own := spec.register_.registered_model) != model:
        raise Problem(
            422, f"model {model!r}: {pipeline} registers its versions as {own!r}: POST /models/{own}/versions"
        )
    return spec


async def _pipeline_of(model: str, airflow: Airflow) -> str:
    """
    Return the pipeline that has registered a model's newest version; or else the one that may be called so, also where
    the asker may not read it: to them the model is not there.
    """
    async with Registry.open(*await of_name(model, Mlflow.of_reader)) as registry:
        found = await pipeline_of_model(model, registry)
    return model if found is None or await airflow.found(f"/dags/{found}", hides=True) is None else found


async def _trainings(run_id: str, run: Mapping[str, Any], airflow: Airflow) -> list[str]:
    """Return the places of what an experiment has trained."""
    if run["state"] not in FINISHED:
        raise Problem(409, f"run {run_id} has not ended yet, it is {run['state']}: ask again when it has")
    if run["state"] != "success":
        raise Problem(409, f"run {run_id} has failed, so nothing of it is registered: GET /runs/{run_id} says why")
    if (result := await result_of(run, airflow)) is None:
        raise Problem(
            409, f"run {run_id}: what came out of it cannot be read; it may be that you may not read its XComs"
        )
    if not result.trainings:
        raise Problem(422, f"run {run_id} has trained nothing: ask for one without `until`, or until train")
    return [each.checkpoint for each in result.trainings]


def _chosen(asked: NewVersion, places: Sequence[str]) -> str:
    found = [place for place in places if asked.training is None or is_named(asked.training, place)]
    if len(found) == 1:
        return found[0]
    said = "several" if found else f"no {asked.training!r}"
    raise Problem(422, f"training: run {asked.run} has {said}; name one of {', '.join(places)}")
