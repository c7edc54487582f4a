"""``/runs/{run}/verdict``: what came of a pipeline's own run, whether production is safe, and what to do."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from mlops.contract.rest import FINISHED, PipelineTonight, Verdict, cancelled_by
from mlops_provider.api import tables
from mlops_provider.api.airflow import AirflowDep
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.api.rights import READ, rights
from mlops_provider.api.runs import RunId, find_run
from mlops_provider.api.standings import standing_of, without_questions
from mlops_provider.api.summaries import kind_of

router = APIRouter(tags=["runs"], responses=DOCUMENTED)


@router.get("/runs/{run}/verdict")
async def verdict(run: RunId, airflow: AirflowDep, user: GetUserDep) -> Verdict:
    """Say what came of a pipeline's own run, or what it does now, and the one thing to do next."""
    found = await find_run(run, airflow)
    return await run_in_threadpool(_verdict, user, found["dag_id"], found["dag_run_id"])


def _verdict(user: Any, dag_id: str, run_id: str) -> Verdict:
    from airflow.utils.session import create_session

    from mlops_provider.verdicts.document import verdict_of
    from mlops_provider.verdicts.reading import night_of

    missing = Problem(404, f"{dag_id}@{run_id} is no pipeline's own run, or you may not read its tasks")
    may = rights([dag_id], user)
    with create_session(scoped=False) as session:
        is_night = kind_of(dag_id) == "night" and all(may(dag_id, what) for what in READ)
        shown = tables.night(session, dag_id, run_id) if is_night else None
        if shown is None:
            raise missing
        shown = shown if may(dag_id, "HITL_DETAIL") else without_questions(shown)
        if shown.state not in FINISHED:
            return _under_way(standing_of(shown))
        if (night := night_of(session, dag_id, run_id)) is None:  # deleted this moment
            raise missing
        cancelled = cancelled_by(shown.note) if shown.state == "failed" else None
        ours = "" if shown.is_noted or cancelled else shown.note
        said = f"It was {cancelled}." if cancelled else ""
        found = verdict_of(session, night, shown.state, noted=ours, cancelled=said)
        return found.model_copy(update={"is_noted": shown.is_noted})


def _under_way(told: PipelineTonight) -> Verdict:
    action = {"asked": "answer the question.", "held": "unpause the pipeline."}
    return Verdict(run=str(told.run), standing=told.standing, happened=told.said, action=action.get(told.standing, ""))
