"""``/runs``: experiments and nights, as runs of Airflow."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import quote

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import PlainTextResponse
from pydantic import TypeAdapter, ValidationError

from mlops.contract.rest import (
    FINISHED,
    MOST_RUNS,
    EndedStep,
    NewRun,
    Run,
    RunKind,
    Runs,
    RunSummary,
    SubmittedRun,
    Task,
    cancelled_by,
    with_cancellation,
)
from mlops.contract.results import ExperimentResult
from mlops.contract.section import NAME_PATTERN, SpecError
from mlops_provider.api.airflow import Airflow, AirflowDep, xcom
from mlops_provider.api.night_results import judged
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.api.submission import ASKED_BEFORE, SubmissionDep, Translated, made, no_pipeline
from mlops_provider.api.summaries import kind_of, summary_of
from mlops_provider.exceptions import is_lost
from mlops_provider.experiments.dags import TASK
from mlops_provider.experiments.names import STEPS, dag_id_of
from mlops_provider.experiments.operator import STEPS_KEY
from mlops_provider.experiments.specs import spec_settings, steps_digest
from mlops_provider.local.client import FOLDS, run_place
from mlops_provider.operator_keys import FAILURE_KEY, ROLLBACK

router = APIRouter(tags=["runs"], responses=DOCUMENTED)

_RUN: Final = re.compile(r"[\w.-]+@[\w.~:+-]+")
_TASK_PATTERN: Final = r"^[\w-][\w.-]*$"
_ONLY_TASK: Final[Mapping[str, str]] = {"experiment": TASK, "rollback": ROLLBACK}
"""By kind."""
_MOST_INDEX: Final = (1 << 31) - 1
"""Of Airflow's database."""
_STEPS: Final = TypeAdapter(list[EndedStep])
_RESULT: Final[TypeAdapter[ExperimentResult]] = TypeAdapter(ExperimentResult)
T = TypeVar("T")
RunId = str
"""``DAG@RUN``."""


@router.post("/runs", status_code=201, responses=ASKED_BEFORE)
async def submit(asked: SubmittedRun, submission: SubmissionDep) -> RunSummary:
    """Have Airflow try a pipeline out: snapshot to evaluation, with other settings; nothing is registered."""
    if (spec := asked.spec) is None:
        return await submission.start(NewRun(**asked.run()), code=asked.code)

    def translate(text: str) -> Translated:
        run = asked.run(spec_settings(text, spec))
        fields = {name: f"spec.{name}" for name in run["settings"] if name not in asked.settings}
        return Translated(made(NewRun, **run), fields, {STEPS: steps_digest(text)})

    return await submission.start_translated(asked.run()["pipeline"], asked, translate, code=asked.code)


@router.get("/runs")
async def runs(
    airflow: AirflowDep,
    pipeline: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    kind: Annotated[RunKind, Query(description="Nights are those of one pipeline")] = "experiment",
    user: Annotated[str | None, Query(description="Who asked for them")] = None,
    state: Annotated[Literal["queued", "running", "success", "failed"] | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_RUNS)] = MOST_RUNS,
    cursor: Annotated[str, Query(description="The `next` of the page before")] = "",
) -> Runs:
    """List runs, the newest first."""
    if kind == "night" and pipeline is None:
        raise SpecError("kind night: name the pipeline, such as ?kind=night&pipeline=flight_ranking")
    if kind == "rollback" and pipeline is not None:
        raise SpecError(f"kind rollback: it is no pipeline's; leave pipeline={pipeline} out")
    params: dict[str, Any] = {"order_by": "-id", "limit": limit, "cursor": cursor}
    if state is not None:
        params["state"] = state
    if user is not None:
        params["triggering_user_name_prefix_pattern"] = user
    dag_id = "~" if pipeline is None else dag_id_of(pipeline) if kind == "experiment" else pipeline
    if pipeline is None:
        params["dag_id_pattern"] = dag_id_of("%") if kind == "experiment" else f"%{ROLLBACK}"
    try:
        page = await airflow.found(f"/dags/{dag_id}/dagRuns", params=params)
    except Problem as error:
        if error.status == 400 and cursor:
            raise Problem(422, f"cursor {cursor!r:.100} is none of these runs: begin without one") from None
        raise
    if page is None:
        raise await no_pipeline(str(pipeline), airflow, kind == "night")
    found = [
        summary_of(run)
        for run in page["dag_runs"]
        if (user is None or run["triggering_user_name"] == user)
        and (pipeline is not None or kind_of(run["dag_id"]) == kind)
    ]
    return Runs(runs=found, next=page["next_cursor"])


@router.get("/runs/{run}", response_model=Run, responses={304: {"description": "It is as the ETag says"}})
async def run(
    run: RunId, airflow: AirflowDep, response: Response, if_none_match: Annotated[str | None, Header()] = None
) -> Any:
    """One run, and what has come out of it so far."""
    found = await whole_run(await find_run(run, airflow), airflow)
    tag = f'"{hashlib.sha256(found.model_dump_json().encode()).hexdigest()[:32]}"'
    known = {each.strip().removeprefix("W/") for each in (if_none_match or "").split(",")}
    if known & {tag, "*"}:
        return Response(status_code=304, headers={"ETag": tag})
    response.headers["ETag"] = tag
    return found


@router.delete("/runs/{run}", status_code=202)
async def cancel(run: RunId, airflow: AirflowDep, user: GetUserDep) -> RunSummary:
    """End a run: its processes and pods end within seconds, and what is committed stays."""
    found = await find_run(run, airflow)
    if found["state"] in FINISHED:
        raise Problem(409, f"{run} has ended already, as {found['state']}")
    body = {"state": "failed", "note": with_cancellation(found["note"], user.get_name())}
    return summary_of(await airflow.request("PATCH", run_place(found["dag_id"], found["dag_run_id"]), json=body))


@router.get("/runs/{run}/logs", response_class=PlainTextResponse)
async def logs(
    run: RunId,
    airflow: AirflowDep,
    task: Annotated[str | None, Query(pattern=_TASK_PATTERN, description="Of a night")] = None,
    try_number: Annotated[int | None, Query(ge=1, description="The newest one if not given")] = None,
    map_index: Annotated[int, Query(ge=-1, le=_MOST_INDEX, description="Of a task that is there several times")] = -1,
) -> str:
    """What a task has written so far."""
    found = await find_run(run, airflow)
    task = task or _ONLY_TASK.get(kind_of(found["dag_id"]))
    if task is None:
        raise SpecError("task: name one of the night's tasks, such as train")
    place = f"{run_place(found['dag_id'], found['dag_run_id'])}/taskInstances/{quote(task, safe='')}"
    instance = place if map_index == -1 else f"{place}/{map_index}"
    if (found_task := await airflow.found(instance)) is None:
        raise Problem(404, await _other_tasks(found, task, map_index, airflow))
    last = found_task["try_number"]
    if try_number is not None and try_number > last:
        raise Problem(404, f"{task} of {run} has had {last} tries so far")
    number = try_number or last
    if not number:
        return ""
    page = await airflow.request(
        "GET", f"{place}/logs/{number}", params={"full_content": "true", "map_index": map_index}
    )
    lines = [line for entry in page["content"] for line in _lines(entry)]
    # Less the marks by which Airflow's pages fold lines.
    return "".join(f"{line}\n" for line in lines if not line.startswith(FOLDS))


async def _other_tasks(run: Mapping[str, Any], task: str, map_index: int, airflow: Airflow) -> str:
    found = await instances_of(run, airflow)
    indices = sorted(each["map_index"] for each in found if each["task_id"] == task)
    if indices:
        known = f"map_index {map_index}: it has {indices[0]} to {indices[-1]}"
    else:
        known = f"its tasks are {', '.join(sorted({each['task_id'] for each in found}))}"
    return f"task {task!r} of {run['dag_id']}@{run['dag_run_id']}: {known}"


async def instances_of(run: Mapping[str, Any], airflow: Airflow) -> list[dict[str, Any]]:
    """The tasks of a run."""
    place = f"{run_place(run['dag_id'], run['dag_run_id'])}/taskInstances"
    return await airflow.every(place, "task_instances")


def _lines(entry: str | Mapping[str, Any]) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
        return
    yield str(entry.get("event", ""))
    for error in entry.get("error_detail") or []:
        yield f"{error['exc_type']}: {error['exc_value']}"


async def find_run(run: RunId, airflow: AirflowDep) -> Mapping[str, Any]:
    """
    Find a run of Airflow, as its API has it.

    :raises Problem: where there is none that may be read
    """
    # A name that a client takes apart would ask for something else.
    dag_id, run_id = run.split("@") if _RUN.fullmatch(run) and not {*run.split("@")} & {".", ".."} else ("", "")
    found = await airflow.found(run_place(dag_id, run_id)) if run_id else None
    if found is None or (found["dag_id"], found["dag_run_id"]) != (dag_id, run_id):
        raise Problem(404, f"there is no run {run!r}: an id is DAG@RUN, as GET /runs lists it")
    return dict(found)


async def whole_run(run: Mapping[str, Any], airflow: Airflow) -> Run:
    summary = summary_of(run)
    instances = await instances_of(run, airflow)
    failure, silent = None, None
    for each in instances:
        if failure is None and each["state"] == "failed":
            told = await xcom(run, each["task_id"], FAILURE_KEY, airflow, each["map_index"])
            said = told.get("message") if isinstance(told, dict) else None
            # Who has ended a process says more than its end.
            failure = (cancelled_by(run["note"]) if is_lost(told) else None) or said
            silent = silent or each
    if run["state"] == "success":
        failure = None  # of a task that was not needed, such as a trial
    elif failure is None and silent is not None:  # somebody else's operator says it in its log only
        task, index = silent["task_id"], silent["map_index"]
        name, more = (task, "") if index == -1 else (f"{task}[{index}]", f"&map_index={index}")
        failure = f"{name} failed: its log says why (GET /runs/{summary.id}/logs?task={quote(task, safe='')}{more})"
    steps, result = None, None
    if summary.kind == "experiment":
        steps = await _said(_STEPS, run, STEPS_KEY, airflow)
    if summary.kind == "experiment" and run["state"] == "success":
        result = await result_of(run, airflow)
    elif summary.kind == "night":
        result = await judged(run, instances, airflow)
    return Run(
        **summary.model_dump(),
        tasks=[Task.model_validate(each, from_attributes=False) for each in instances],
        steps=steps or [],
        result=result,
        failure=failure,
    )


async def result_of(run: Mapping[str, Any], airflow: Airflow) -> ExperimentResult | None:
    """Return what came out of an experiment that has ended well; None where the asker may not read it."""
    return await _said(_RESULT, run, "return_value", airflow)


async def _said(kind: TypeAdapter[T], run: Mapping[str, Any], key: str, airflow: Airflow) -> T | None:
    """Return what an experiment's task has said; None where it has not, or somebody has put something else there."""
    try:
        return kind.validate_python(await xcom(run, TASK, key, airflow))
    except ValidationError:
        return None
