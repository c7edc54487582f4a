"""``/studies``: searches for the settings of a training: of experiments, and of a pipeline's own runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends
from pydantic import ValidationError

from mlops.contract.refs import RefError, StudyRef, TrialRef, ref_of
from mlops.contract.rest import (
    FINISHED,
    NewBudget,
    NewRun,
    NewStudy,
    Run,
    RunSummary,
    Study,
    Trial,
    Trials,
    with_budget,
)
from mlops.contract.section import SpecError
from mlops.contract.sections.tune import MAX_TRIALS
from mlops.contract.step import EXPERIMENT_STEPS
from mlops_provider.api.airflow import Airflow, AirflowDep, xcom
from mlops_provider.api.deployments import of_name
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.api.runs import find_run, instances_of, whole_run
from mlops_provider.api.submission import ASKED_BEFORE, SubmissionDep, made
from mlops_provider.committed import DAMAGED, read_committed
from mlops_provider.connections import store_of
from mlops_provider.experiments.budget import Budget
from mlops_provider.experiments.names import place_of
from mlops_provider.gathering import gather
from mlops_provider.local.client import run_place
from mlops_provider.operator_keys import TRIES, TUNES

router = APIRouter(tags=["studies"], responses=DOCUMENTED)

_SEARCHES: Final = (TRIES, TUNES)


@router.post("/studies", status_code=201, responses=ASKED_BEFORE)
async def start(asked: NewStudy, submission: SubmissionDep) -> RunSummary:
    """Have Airflow search for the settings of a training, by trials; the run's id is the study's."""
    return await submission.start(made(NewRun, **asked.run()), "studies", fields=asked.fields())


class _Search(NamedTuple):
    """A run, its trials that have ended, and what the search found where it has ended."""

    run: Run
    trials: list[Trial]
    concluded: StudyRef | None


async def _find_run(study: str, airflow: AirflowDep) -> Run:
    """:raises Problem: where there is no such run, or it has no search"""
    run = await whole_run(await find_run(study, airflow), airflow)
    is_before = run.asked.get("until") in EXPERIMENT_STEPS[: EXPERIMENT_STEPS.index("tune")]
    has_none = run.state == "success" and not any(each.step == "tune" for each in run.steps)
    if run.kind == "rollback" or (run.kind == "experiment" and (is_before or has_none)):
        raise Problem(404, f"there is no study {study!r}: an id is that of a run which searches, see POST /studies")
    return run


FoundDep = Annotated[Run, Depends(_find_run)]


async def _find(run: FoundDep, airflow: AirflowDep) -> _Search:
    """:raises Problem: where the run is a night that has no search"""
    return _search(run, await (_returned(run, airflow) if run.kind == "night" else _committed(run)))


async def _experiment(run: FoundDep) -> Run:
    """:raises Problem: where it is no experiment's search"""
    if run.kind == "night":
        raise Problem(409, f"{run.id} is a night: its budget is tune.trials and the like in the pipeline's file")
    return run


SearchDep = Annotated[_Search, Depends(_find)]
RunDep = Annotated[Run, Depends(_experiment)]


@router.get("/studies/{study}")
async def study(search: SearchDep) -> Study:
    """A search, and what it has found so far."""
    return _said(search)


def _said(search: _Search) -> Study:
    run, found, concluded = search
    assert run.pipeline is not None, "it is no rollback"
    return Study(
        id=run.id,
        pipeline=run.pipeline,
        state=run.state,
        user=run.user,
        trials=dict(Counter(trial.state for trial in found) if concluded is None else concluded.trials),
        best_trial=None if concluded is None else concluded.best_trial,
        best_value=None if concluded is None else concluded.best_value,
        best_parameters=None if concluded is None else dict(concluded.parameters),
        failure=run.failure,
        airflow=run.airflow,
    )


@router.get("/studies/{study}/trials")
async def trials(search: SearchDep) -> Trials:
    """The trials that have ended, by their numbers."""
    return Trials(trials=search.trials)


@router.post("/studies/{study}/budget", status_code=202)
async def change_budget(run: RunDep, asked: NewBudget, airflow: AirflowDep, user: GetUserDep) -> Study:
    """
    Let a search that runs cost more or less: it counts when the next trial would begin, also for one that was stopped.
    """
    if asked.trials is not None and asked.trials > MAX_TRIALS:
        raise SpecError(f"trials {asked.trials}: a search has {MAX_TRIALS} at most")
    return await _give(run, {**asked.model_dump(exclude_none=True), "is_stopped": False}, airflow, user.get_name())


@router.post("/studies/{study}/stop", status_code=202)
async def stop(run: RunDep, airflow: AirflowDep, user: GetUserDep) -> Study:
    """Let no more trials begin: those that have come to their end, and the search concludes by what there is then."""
    return await _give(run, {"is_stopped": True}, airflow, user.get_name())


async def _give(run: Run, change: dict[str, Any], airflow: AirflowDep, user: str) -> Study:
    """:raises Problem: where the run has ended, or Airflow does not let the user change it"""
    if run.state in FINISHED:
        raise Problem(409, f"{run.id} has ended already, as {run.state}: search again, and its trials are found")
    if any(each.step == "tune" for each in run.steps):
        raise Problem(409, f"{run.id} has concluded its search: GET /studies/{run.id} says what it has found")
    assert run.pipeline is not None, "it is an experiment"
    place = place_of(run.user, run.pipeline, run.asked)
    if {"", ".", ".."} & {*place.split("/")}:  # what Airflow keeps of a run can be edited
        raise Problem(409, f"{run.id} has a name that leads elsewhere, {place}")
    dag_id, _, run_id = run.id.partition("@")
    store = await of_name(run.pipeline, store_of)
    try:
        known = await Budget.read(store, place, run_id)
    except SpecError:  # it is damaged, and written anew
        known = Budget()
    budget = known.changed(**change)
    # First: it says whether the user may.
    note = {"note": with_budget(run.note, str(budget), user)}
    await airflow.request("PATCH", run_place(dag_id, run_id), json=note)
    await budget.write(store, place, run_id)
    return _said(_search(run, await _committed(run)))


async def _returned(run: Run, airflow: Airflow) -> list[TrialRef | StudyRef | None]:
    """
    Read what a night's trials, and its search, have returned; None where somebody has put something else there.

    :raises Problem: where it has no search
    """
    dag_id, _, run_id = run.id.partition("@")
    found = {"dag_id": dag_id, "dag_run_id": run_id}
    tasks = [each for each in await instances_of(found, airflow) if each["operator_name"] in _SEARCHES]
    if not tasks:
        raise Problem(404, f"{run.id} searches for nothing: its pipeline's file has no tune")

    async def read(task: Mapping[str, Any]) -> TrialRef | StudyRef | None:
        wire = await xcom(found, task["task_id"], "return_value", airflow, task["map_index"])
        try:
            return ref_of((TrialRef, StudyRef), wire)  # type: ignore[return-value]
        except (RefError, TypeError):  # a trial that the budget did not let begin returns none
            return None

    return await gather(read, [each for each in tasks if each["state"] == "success"])


async def _committed(run: Run) -> list[TrialRef | StudyRef | None]:
    """Read what the trials of an experiment, and its search, have committed."""
    assert run.pipeline is not None, "it is an experiment"
    store = await of_name(run.pipeline, store_of)
    # What Airflow keeps of a run can be edited: it may lead to no other place.
    folders = (f"{place_of(run.user, run.pipeline, run.asked)}/", f"pipelines/{run.pipeline}/")
    places = [each.place for each in run.steps if each.step == "tune" or each.step.startswith("trial ")]

    async def read(place: str) -> TrialRef | StudyRef | None:
        is_own = place.startswith(folders) and not {"", ".", ".."} & {*place.split("/")}
        try:
            ref = await read_committed(store, place) if is_own else None
        except DAMAGED:
            return None
        return ref if isinstance(ref, TrialRef | StudyRef) else None

    return await gather(read, places)


def _search(run: Run, refs: Sequence[TrialRef | StudyRef | None]) -> _Search:
    trials = {trial.number: trial for ref in refs if isinstance(ref, TrialRef) and (trial := _trial(ref)) is not None}
    concluded = (ref for ref in refs if isinstance(ref, StudyRef) and _is_sound(ref))
    return _Search(run, [trials[number] for number in sorted(trials)], next(concluded, None))


def _trial(ref: TrialRef) -> Trial | None:
    """Return a trial; None where somebody has edited what it returned."""
    try:
        return Trial.model_validate({name: getattr(ref, name) for name in Trial.model_fields})
    except ValidationError:
        return None


def _is_sound(ref: StudyRef) -> bool:
    """Whether it is as a search has made it: who may edit XComs can put anything there."""
    parts = (ref.best_trial, int), (ref.best_value, int | float), (ref.parameters, Mapping), (ref.trials, Mapping)
    return all(isinstance(value, kind) for value, kind in parts) and all(
        isinstance(count, int) for count in ref.trials.values()
    )
