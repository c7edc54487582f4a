"""``/runs/{id}/progress``: how far the trainings are that go on, by what they have told MLflow."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends

from mlops.contract.rest import FINISHED, RunProgress, TrainingProgress
from mlops.contract.section import SpecError
from mlops_provider.api.deployments import Mlflow, of_name, read_by_team
from mlops_provider.api.metrics import own_trainings
from mlops_provider.api.problems import DOCUMENTED, outage
from mlops_provider.api.runs import find_run
from mlops_provider.api.trainings import pipeline_of
from mlops_provider.curves import Tracking
from mlops_provider.deployment import tenant_of_name
from mlops_provider.gathering import gather
from mlops_provider.mlflow_rest import AwayError
from mlops_provider.progress import live_first, pairs_of, progress_of

router = APIRouter(tags=["metrics"], responses=DOCUMENTED)

RunName = tuple[str, str]
"""Of a DAG and its run."""
_PATIENCE_SECONDS: Final = 3.0
"""How the pipelines stand does not wait any longer for how far their trainings are."""
_KNOWN_SECONDS: Final = 60.0
"""So long an experiment is not asked for again: somebody may remove it, and a training make it anew."""
_experiments: Final[dict[tuple[str, str], tuple[str, float]]] = {}
"""Ids, and when they were asked for, by MLflow's address and name."""


@router.get("/runs/{run}/progress")
async def progress(run: Annotated[Mapping[str, Any], Depends(find_run)]) -> RunProgress:
    """How far the trainings of a run are that go on, those of a search included; none once the run has ended."""
    if run["state"] in FINISHED:
        return RunProgress(trainings=[])
    async with Tracking.open(*await of_name(pipeline_of(run), Mlflow.of_steps)) as tracking:
        found = await own_trainings(run, tracking)
    return RunProgress(trainings=live_first([each.progress for each in found if each.progress is not None]))


async def trainings_under_way(
    runs: Iterable[RunName],
) -> tuple[Mapping[RunName, Sequence[TrainingProgress]], Mapping[str, str]]:
    """
    Read how far the trainings of runs are, with one question to the MLflow of each team.

    :return: by run, and by pipeline why that cannot be read
    """
    wanted = dict(runs)

    async def read(team: str | None, mlflow: Mlflow) -> list[tuple[RunName, TrainingProgress]]:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await _of_team(mlflow, {name: run for name, run in wanted.items() if team_of[name] == team})
        except TimeoutError:
            said = f"MLflow at {mlflow.uri} has not answered within {_PATIENCE_SECONDS:g} s"
            raise AwayError(said) from None

    try:
        team_of = {name: tenant_of_name(name) for name in wanted}
        told, errors = await read_by_team(set(team_of.values()), Mlflow.of_steps, read)
    except SpecError as error:  # of the deployment: it is nobody's alone
        return {}, dict.fromkeys(wanted, str(error))
    found: dict[RunName, list[TrainingProgress]] = {}
    for run, progress in told:
        found.setdefault(run, []).append(progress)
    problems = {name: outage(errors[team]) for name, team in team_of.items() if team in errors}
    return {run: live_first(several) for run, several in found.items()}, problems


async def _of_team(mlflow: Mlflow, runs: Mapping[str, str]) -> list[tuple[RunName, TrainingProgress]]:
    async with Tracking.open(*mlflow) as tracking:

        async def experiment(name: str) -> str | None:
            known, asked_at = _experiments.get((mlflow.uri, name), ("", -math.inf))
            if time.monotonic() < asked_at + _KNOWN_SECONDS:
                return known
            if (found := await tracking.experiment(name)) is not None:
                _experiments[mlflow.uri, name] = found, time.monotonic()
            return found

        ids = [found for found in await gather(experiment, runs) if found is not None]
        tracked = await tracking.under_way(ids) if ids else []
    told = []
    for each in reversed(tracked):
        tags = pairs_of(each, "tags")
        dag_id, run_id = tags.get("mlops.airflow.dag_id", ""), tags.get("mlops.airflow.run_id", "")
        if runs.get(dag_id) == run_id and (progress := progress_of(each)) is not None:
            told.append(((dag_id, run_id), progress))
    return told
