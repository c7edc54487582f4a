"""
What changes the registry: a training of an experiment is registered, a version is wanted in production, a champion is
taken back. What is done, runs of Airflow do. A version goes into production by the answer of the people whom its
pipeline names, in Airflow's form, and by nothing that is asked for here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import obstore
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Response

from mlops.contract.rest import FINISHED, NewRollback, NewStage, NewVersion, StageAnswer, StartedRun
from mlops.contract.section import SpecError
from mlops.contract.stages import ARCHIVED, CANARY, CHAMPION, PRODUCTION, STAGING
from mlops.signing.envelope import EnvelopeError
from mlops.signing.packages import SIGNATURE_TAG, PackageSeal
from mlops_provider.adoption import Adoption, NobodyApprovesError, is_named, unpausing
from mlops_provider.api.airflow import Airflow, AirflowDep
from mlops_provider.api.deployments import of_name
from mlops_provider.api.idempotency import IdempotencyKey, RunOnce
from mlops_provider.api.models import Name, RegistryDep, aliases_of, find_version, report_of, tags_of, version_summary
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.api.runs import find_run, result_of, summary_of, text_of_pipeline
from mlops_provider.committed import DAMAGED, read_committed, read_json
from mlops_provider.connections import store_of
from mlops_provider.deployment import Deployment
from mlops_provider.experiments.names import tried_out
from mlops_provider.local.client import PAGE, run_place
from mlops_provider.operators.adopted import pipeline_of
from mlops_provider.operators.keys import trusted_keys
from mlops_provider.operators.question import options_about, subject_about
from mlops_provider.operators.rollback import other_champion, rollback_dag_id
from mlops_provider.registry import Registry
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import changed_pipeline

router = APIRouter(tags=["releases"], responses=DOCUMENTED)

_PREFIX: Final = "rest__"
_ANSWERED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": StartedRun, "description": "It was asked for before"},
    202: {"description": "The run was started: `Location` is its address"},
}
_WAITS: Final[dict[int | str, dict[str, Any]]] = {202: {"model": StageAnswer, "description": "It waits for something"}}
_DOES: Final[Mapping[str, str]] = {
    "ApproveOperator": "asks its approvers",
    "CanaryOperator": "watches it as a canary",
    "PromoteOperator": "puts it into production",
}
"""What a task does with a version, by its operator."""
_AT_WORK: Final = (
    "scheduled", "queued", "running", "restarting", "awaiting_input", "deferred", "up_for_reschedule", "up_for_retry",
)  # fmt: skip
"""States of a task that has begun, or is about to."""
_ENTRY: Final = re.compile(r"\d{12}\.json")
_BY_OTHER_MEANS: Final[Mapping[str, str]] = {
    STAGING: "register puts a version there, once, and nothing leads back",
    CANARY: "the canary of its pipeline does (promote.canary), once its approvers have said yes",
}
"""How a version comes into a stage, other than by being asked for."""


@router.post("/models/{name}/versions", status_code=202, responses=_ANSWERED)
async def register(name: Name, asked: NewVersion, airflow: AirflowDep, response: Response) -> StartedRun:
    """
    Have the pipeline judge a training of an experiment: a run of its own DAG evaluates it, registers it if it passes,
    and asks the approvers. The same training is the same run, however often it is asked for.
    """
    run = await find_run(asked.run, airflow)
    pipeline = tried_out(run["dag_id"])
    if pipeline is None:
        raise Problem(422, f"run {asked.run}: it is no experiment; what a night trains, the night registers itself")
    if (own := (await _spec(pipeline, airflow)).register_.registered_model) != name:
        raise Problem(422, f"model {name!r}: {pipeline} registers its versions as {own!r}: POST /models/{own}/versions")
    place = _chosen(asked, await _trainings(asked.run, run, airflow))
    if pipeline_of(place) not in (None, pipeline):  # who may edit XComs may have named any place
        raise Problem(422, f"run {asked.run}: {place} is no training of {pipeline}")
    store = await of_name(pipeline, store_of)
    try:
        committed = await read_committed(store, place)
    except DAMAGED:
        raise Problem(409, f"{place} is damaged: mlops store verify says what else") from None
    adoption = Adoption.of(place, committed)
    dag = await airflow.found(f"/dags/{pipeline}/details")
    try:
        adoption.check(dag)
    except NobodyApprovesError as error:
        raise Problem(409, str(error)) from None
    once = RunOnce(dag_id=pipeline, run_id=adoption.run_id, conf=adoption.conf)
    before = await once.before(airflow)
    return _started(*((before, False) if before else await once.trigger(airflow)), dag, response)


async def _spec(name: str, airflow: Airflow) -> Pipeline:
    """:raises Problem: where the pipeline has no file that the asker may read"""
    # It reads YAML: nothing for the event loop.
    return await asyncio.to_thread(changed_pipeline, await text_of_pipeline(name, airflow), name, {}, "settings")


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


@router.put("/models/{name}/versions/{version}/stage", responses=_WAITS)
@router.post("/models/{name}/versions/{version}/stage", responses=_WAITS)
async def ask_stage(
    name: Name, version: str, asked: NewStage, registry: RegistryDep, airflow: AirflowDep, response: Response
) -> StageAnswer:
    """
    Ask for a version, by its number or alias, to be in a stage. This moves nothing: 200 where it is there, 202 with the
    address of the question where people decide, or with what its run does now, and 409 where nothing leads there.
    """
    found = await find_version(name, version, registry)
    candidate = _Candidate.of(found)
    if candidate.stage == asked.stage:
        return candidate.answer(asked.stage)
    if asked.stage in _BY_OTHER_MEANS:
        raise Problem(409, f"{candidate.said} is {candidate.where}: {_BY_OTHER_MEANS[asked.stage]}")
    if candidate.stage == ARCHIVED:
        raise Problem(409, await _why_archived(candidate))
    if candidate.stage == PRODUCTION:
        raise Problem(
            409,
            f"{candidate.said} is {candidate.where}: POST /models/{name}/rollback puts the former champion in its "
            f"place, mlops models retire {name} --why ... none",
        )
    signed_for = await _registered_by(candidate, tags_of(found).get(SIGNATURE_TAG))
    dag_id = candidate.pipeline if signed_for is None else signed_for.dag_id
    question = await _question(candidate, report_of(found).digest(), dag_id, airflow)
    if asked.stage == ARCHIVED:
        there = f"answer it with Reject at {question.address}, or " if question else ""
        raise Problem(409, f"{candidate.said} is {candidate.where}: {there}mlops models archive {candidate.command}")
    response.status_code = 202
    if question is not None:
        return candidate.answer(asked.stage, f"an answer to: {question.subject}", question)
    return candidate.answer(asked.stage, *await _under_way(candidate, signed_for, airflow))


class _RunOf(NamedTuple):
    """A run of Airflow that has to do with a version."""

    dag_id: str
    run_id: str

    @property
    def id(self) -> str:
        return f"{self.dag_id}@{self.run_id}"

    @property
    def airflow(self) -> str:
        return f"/dags/{self.dag_id}/runs/{self.run_id}"


class _Form(NamedTuple):
    """A question that waits for an answer."""

    subject: str
    run: _RunOf
    task_id: str
    approvers: list[str]

    @property
    def address(self) -> str:
        return f"{self.run.airflow}/tasks/{self.task_id}/required_actions"


class _Candidate(NamedTuple):
    """A version that is wanted in a stage."""

    model: str
    version: str
    pipeline: str
    stage: str | None

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> _Candidate:
        """:param found: the version, as MLflow has it"""
        summary = version_summary(found)
        return cls(summary.name, summary.version, summary.pipeline, summary.stage)

    @property
    def said(self) -> str:
        return f"version {self.version} of {self.model}"

    @property
    def where(self) -> str:
        return "in no stage yet" if self.stage is None else self.stage if self.stage == ARCHIVED else f"in {self.stage}"

    @property
    def command(self) -> str:
        """What follows a command about it."""
        return f"{self.model} {self.version} --why ..."

    def answer(self, wanted: str, waits_for: str | None = None, by: _Form | _RunOf | None = None) -> StageAnswer:
        """
        :param waits_for: None: it is done
        :param by: the question, or the run, that decides
        """
        form, run = (by, by.run) if isinstance(by, _Form) else (None, by)
        return StageAnswer(
            model=self.model,
            version=self.version,
            stage=self.stage,
            wanted=wanted,
            is_done=waits_for is None,
            waits_for=waits_for,
            question=None if form is None else form.address,
            approvers=[] if form is None else form.approvers,
            run=None if run is None else run.id,
            airflow=None if run is None else run.airflow,
        )


async def _registered_by(candidate: _Candidate, envelope: str | None) -> _RunOf | None:
    """Return the run that has signed the version; None where none has whose key is trusted."""
    if envelope is None:
        return None
    trusted = await of_name(candidate.model, _trusted)
    try:
        seal = PackageSeal.unsealed(envelope.encode(), trusted)
    except EnvelopeError:
        return None
    if (seal.model, seal.version) != (candidate.model, candidate.version):
        return None
    dag_id, run_id, _ = seal.signed_for.split("/")  # the task instance that registered it
    return _RunOf(dag_id, run_id)


def _trusted(deployment: Deployment) -> list[str]:
    return [] if deployment.public_keys_file is None else trusted_keys(deployment)


async def _question(candidate: _Candidate, lineage_sha256: str, dag_id: str, airflow: Airflow) -> _Form | None:
    """Return the form that asks about a version, whichever run of the DAG shows it; None where none waits."""
    page = await airflow.found(
        f"/dags/{quote(dag_id, safe='')}/dagRuns/~/hitlDetails",
        hides=True,
        params={"response_received": "false", "state": "awaiting_input", "limit": PAGE},
    )
    subject = subject_about(candidate.model, candidate.version)
    options = [*options_about(candidate.version, lineage_sha256)]
    for form in [] if page is None else page["hitl_details"]:
        if (form["subject"], form["options"]) == (subject, options):
            task, people = form["task_instance"], [person["name"] for person in form["assigned_users"]]
            run = _RunOf(task["dag_id"], task["dag_run_id"])
            # Where Airflow lets everybody answer, whose answer counts is in the pipeline's file.
            approvers = people or await _approvers(candidate.pipeline, airflow)
            return _Form(subject, run, task["task_id"], approvers)
    return None


async def _approvers(pipeline: str, airflow: Airflow) -> list[str]:
    """Return whom a pipeline names; none where its DAG is not made from a file."""
    try:
        approval = (await _spec(pipeline, airflow)).promote.approval
    except (Problem, SpecError):
        return []
    return [] if approval is None else [*approval.approvers]


async def _under_way(candidate: _Candidate, run: _RunOf | None, airflow: Airflow) -> tuple[str, _RunOf]:
    """
    Return what a run does with a version now, in a sentence.

    :param run: that has registered it
    :raises Problem: where it does nothing any more
    """
    otherwise = f"mlops models promote {candidate.command} puts it into production by your own decision"
    if run is None:
        raise Problem(
            409,
            f"no signature says which run has registered {candidate.said} (register signs it a moment later, where "
            f"[mlops] release_key names a key), and no run asks about it: {otherwise}",
        )
    found = await airflow.found(run_place(*run), hides=True)
    if found is None:
        raise Problem(409, f"Airflow knows no run {run.id}, which has registered {candidate.said}: {otherwise}")
    has_ended = found["state"] in FINISHED
    states = ["failed"] if has_ended else _AT_WORK
    page = await airflow.request("GET", f"{run_place(*run)}/taskInstances", params={"state": states, "limit": PAGE})
    task = next(iter(page["task_instances"]), None)
    if has_ended:
        at = "" if task is None else f" at {task['task_id']}"
        again = "its task promote" if task is None else "that task and those after it"
        raise Problem(
            409,
            f"run {run.id} has ended as {found['state']}{at}, and left {candidate.said} {candidate.where}: clear "
            f"{again} at {run.airflow} to have it go on; {otherwise}",
        )
    return _doing(run.id, task), run


def _doing(run_id: str, task: Mapping[str, Any] | None) -> str:
    """Say what a run does that has not ended."""
    if task is None:
        return f"run {run_id}, whose next task is about to begin"
    does = _DOES.get(task["operator_name"])
    return f"{task['task_id']} of run {run_id}{f', which {does}' if does else ''}: it is {task['state']}"


async def _why_archived(candidate: _Candidate) -> str:
    former = await _former_champions(candidate.model)
    if former and former[-1] == candidate.version:
        what = f"it is the former champion, which POST /models/{candidate.model}/rollback puts into production again"
    else:
        what = (
            f"mlops models history {candidate.model} says by whom, and why; mlops models promote {candidate.command} "
            "puts it into production all the same"
        )
    return f"{candidate.said} is archived: {what}"


async def _former_champions(model: str) -> list[str] | None:
    """Return those that rollbacks lead to, the latest last; None where the audit trail cannot be read so."""
    store = await of_name(model, store_of)
    paths = [entry["path"] async for page in obstore.list(store, f"models/{model}/audit") for entry in page]
    keys = [path for path in paths if _ENTRY.fullmatch(path.rpartition("/")[2])]
    try:
        newest = await read_json(store, max(keys)) if keys else None
        return None if newest is None else [str(each) for each in newest["stages"]["former"]]
    except (ValueError, KeyError, TypeError):  # whoever acts on it says what is wrong
        return None


@router.post("/models/{name}/rollback", status_code=202, responses=_ANSWERED)
async def roll_back(
    name: Name,
    asked: NewRollback,
    registry: RegistryDep,
    airflow: AirflowDep,
    user: GetUserDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> StartedRun:
    """Put the former champion into production again, and archive the present one, by the DAG `rollback`."""
    dag_id = rollback_dag_id(name)
    if (dag := await airflow.found(f"/dags/{dag_id}")) is None:
        raise Problem(409, f"Airflow has no DAG {dag_id!r}, which takes {name} back: deploy dags/rollback.py")
    once = RunOnce.of_key(dag_id, _PREFIX, asked.conf(name), user.get_name(), idempotency_key)
    # Not checked again: it may be done by now.
    if (before := await once.before(airflow)) is not None:
        return _started(before, False, dag, response)
    await _check_champion(name, asked.champion, registry)
    return _started(*await once.trigger(airflow), dag, response)


async def _check_champion(name: str, wanted: str | None, registry: Registry) -> None:
    """:raises Problem: where nothing would be taken back"""
    champion = aliases_of(await registry.model(name)).get(CHAMPION)
    if champion is None:
        raise Problem(409, f"no version of {name!r} is in production: there is nothing to take back")
    if wanted not in (None, champion):
        raise Problem(409, f"champion: {other_champion(name, str(wanted), champion)}")
    if await _former_champions(name) == []:
        raise Problem(
            409,
            f"there is no former champion of {name} to go back to, version {champion} is the first: "
            f"mlops models promote {name} VERSION --why ... puts another one there",
        )


def _started(run: Mapping[str, Any], is_new: bool, dag: Mapping[str, Any], response: Response) -> StartedRun:
    if not is_new:
        response.status_code = 200
    summary = summary_of(run)
    response.headers["Location"] = f"../../runs/{summary.id}"
    return StartedRun(**summary.model_dump(), waits_for=unpausing(dag) if summary.state == "queued" else None)
