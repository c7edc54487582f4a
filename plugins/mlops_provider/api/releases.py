"""
What changes the registry beside :mod:`registration`: a version is wanted in production, a champion is taken back. What
is done, runs of Airflow do. A version goes into production by the answer of the people whom its pipeline names, in
Airflow's form, and by nothing that is asked for here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import obstore
from fastapi import APIRouter, Response

from mlops.contract.rest import FINISHED, NewRollback, NewStage, StageAnswer, StartedRun
from mlops.contract.section import SpecError
from mlops.contract.stages import ARCHIVED, CANARY, CHAMPION, PRODUCTION, STAGING
from mlops.signing.envelope import EnvelopeError
from mlops.signing.packages import SIGNATURE_TAG, PackageSeal
from mlops.signing.seals import entry_key, entry_numbers
from mlops_provider.airflow_pages import form_page, run_page
from mlops_provider.api.airflow import Airflow, AirflowDep
from mlops_provider.api.deployments import of_name
from mlops_provider.api.models import Name, RegistryDep, aliases_of, find_version, report_of, tags_of, version_summary
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.api.registration import spec_of
from mlops_provider.api.started import ANSWERED, ReleaseDep
from mlops_provider.committed import read_json
from mlops_provider.connections import store_of
from mlops_provider.deployment import Deployment
from mlops_provider.local.client import PAGE, run_place
from mlops_provider.operator_keys import APPROVES, CANARIES, PROMOTES
from mlops_provider.operators.keys import trusted_keys
from mlops_provider.operators.question import options_about, subject_about
from mlops_provider.operators.rollback import other_champion, rollback_dag_id
from mlops_provider.registry import Registry

router = APIRouter(tags=["releases"], responses=DOCUMENTED)

_PREFIX: Final = "rest__"
_WAITS: Final[dict[int | str, dict[str, Any]]] = {202: {"model": StageAnswer, "description": "It waits for something"}}
_DOES: Final[Mapping[str, str]] = {
    APPROVES: "asks its approvers",
    CANARIES: "watches it as a canary",
    PROMOTES: "puts it into production",
}
"""What a task does with a version, by its operator."""
_AT_WORK: Final = (
    "scheduled", "queued", "running", "restarting", "awaiting_input", "deferred", "up_for_reschedule", "up_for_retry",
)  # fmt: skip
"""States of a task that has begun, or is about to."""
_BY_OTHER_MEANS: Final[Mapping[str, str]] = {
    STAGING: "register puts a version there, once, and nothing leads back",
    CANARY: "the canary of its pipeline does (promote.canary), once its approvers have said yes",
}
"""How a version comes into a stage, other than by being asked for."""


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
        return run_page(self.dag_id, self.run_id)


class _Form(NamedTuple):
    """A question that waits for an answer."""

    subject: str
    run: _RunOf
    task_id: str
    approvers: list[str]

    @property
    def address(self) -> str:
        return form_page(*self.run, self.task_id)


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
        approval = (await spec_of(pipeline, airflow)).promote.approval
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
    numbers = entry_numbers(model, paths)
    try:
        newest = await read_json(store, entry_key(model, numbers[-1])) if numbers else None
        return None if newest is None else [str(each) for each in newest["stages"]["former"]]
    except (ValueError, KeyError, TypeError):  # whoever acts on it says what is wrong
        return None


@router.post("/models/{name}/rollback", status_code=202, responses=ANSWERED)
async def roll_back(name: Name, asked: NewRollback, registry: RegistryDep, asking: ReleaseDep) -> StartedRun:
    """Put the former champion into production again, and archive the present one, by the DAG `rollback`."""
    dag_id, airflow = rollback_dag_id(name), asking.airflow
    if (dag := await airflow.found(f"/dags/{dag_id}")) is None:
        raise Problem(409, f"Airflow has no DAG {dag_id!r}, which takes {name} back: deploy dags/rollback.py")
    once = replace(asking.once(dag_id, _PREFIX, asked.conf(name)), pinned=(CHAMPION,))
    # Not checked again: it may be done by now.
    if (before := await once.before(airflow)) is not None:
        return asking.started(before, False, dag)
    # The one that is there now: two who ask at once are not to take two champions back, one run after the other.
    champion = await _champion(name, asked.champion, registry)
    return asking.started(*await once.trigger(airflow, noted={CHAMPION: champion}), dag)


async def _champion(name: str, wanted: str | None, registry: Registry) -> str:
    """
    Return the version that is to be taken back.

    :raises Problem: where nothing would be
    """
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
    return champion
