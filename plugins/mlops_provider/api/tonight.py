"""``/tonight``: how all pipelines stand, those that need a person first. ``/nights``: what came of one's runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from mlops.contract.rest import MOST_RUNS, Nights, Tonight, TrainingProgress, Trainings
from mlops_provider.api import tables
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.api.progress import trainings_under_way
from mlops_provider.api.rights import READ, rights
from mlops_provider.api.shared import RETRY_MILLISECONDS, STREAM_SECONDS, Shared, event_of
from mlops_provider.api.standings import CANNOT_READ, Shown, night_of, standing_of, trains, urgency, without_questions

router = APIRouter(tags=["tonight"], responses=DOCUMENTED)

_FRESH_SECONDS: Final = 5.0
"""For so long all who look at one process of the server are shown the same."""
_LOOK_SECONDS: Final = 1.0
_DAG_PATTERN: Final = r"^[\w.-]+$"


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    """What all are shown, whoever may read it."""

    pipelines: Sequence[Shown]
    trainings: Mapping[str, Sequence[TrainingProgress]]
    """By run, ``DAG@RUN``."""
    problems: Mapping[str, str]
    """Why they are not known, by pipeline."""


@router.get("/tonight")
async def tonight(user: GetUserDep) -> Tonight:
    """List how the pipelines stand that the asker may read, those that need a person first."""
    found = await _shared.look()
    return _with_trainings(await run_in_threadpool(_tonight, found.pipelines, user), found)


async def _look_first() -> Looked:
    """Before the answer begins: what fails then is an error, and not a stream that ends."""
    return await _shared.look()


@router.get("/tonight/stream", response_class=EventSourceResponse)
async def stream(user: GetUserDep, found: Annotated[Looked, Depends(_look_first)]) -> AsyncIterator[ServerSentEvent]:
    """
    The same live: event `tonight` at once, and again when something has changed; event `trainings` where that is only
    how far these are. It ends after some seconds; browsers open it again by themselves, and then log in again, too.
    """
    begun = time.monotonic()
    before: Sequence[Shown] | None = None
    permitted = told = Tonight(pipelines=[], problem="")
    yield ServerSentEvent(retry=RETRY_MILLISECONDS)
    while time.monotonic() < begun + STREAM_SECONDS:
        is_first, stood = before is None, permitted
        if found.pipelines != before:
            # What the user may read is asked for only then: with many pipelines that takes longer than all else.
            before, permitted = found.pipelines, await run_in_threadpool(_tonight, found.pipelines, user)
        now = _with_trainings(permitted, found)
        if is_first or permitted != stood:
            yield event_of("tonight", now)
        elif now != told:
            trainings = {each.name: each.trainings for each in now.pipelines if each.trainings}
            yield event_of("trainings", Trainings(trainings=trainings, problem=now.problem))
        told = now
        await asyncio.sleep(_LOOK_SECONDS)
        found = await _shared.look()


@router.get("/nights")
async def nights(
    user: GetUserDep,
    pipeline: Annotated[str, Query(pattern=_DAG_PATTERN, max_length=250)],
    limit: Annotated[int, Query(ge=1, le=MOST_RUNS)] = 30,
) -> Nights:
    """List what came of the runs of a pipeline, the newest first; of its experiments, by the DAG of these."""
    return await run_in_threadpool(_nights, user, pipeline, limit)


def _nights(user: Any, pipeline: str, limit: int) -> Nights:
    from airflow.utils.session import create_session

    may = rights([pipeline], user)
    if all(may(pipeline, what) for what in READ):
        with create_session(scoped=False) as session:
            found = tables.nights(session, pipeline, limit)
        if found is not None:
            asks, judges = may(pipeline, "HITL_DETAIL"), may(pipeline, "XCOM")
            told = [
                night_of(shown if asks else without_questions(shown), due_at, evaluation if judges else None)
                for shown, due_at, evaluation in found
            ]
            return Nights(nights=told)
    raise Problem(404, f"there is no pipeline {pipeline!r} that you may read: GET /tonight lists them")


def _tonight(found: Sequence[Shown], user: Any) -> Tonight:
    told = [standing_of(each) for each in _permitted(found, user)]
    return Tonight(pipelines=sorted(told, key=urgency), problem="")


def _with_trainings(told: Tonight, found: Looked) -> Tonight:
    """Add how far the trainings are of the pipelines that are told of."""
    pipelines = [
        each.model_copy(update={"trainings": list(found.trainings.get(each.run or "", ()))}) for each in told.pipelines
    ]
    problems = sorted({found.problems[each.name] for each in pipelines if each.name in found.problems})
    problem = f"How far some trainings are is not known: {'; '.join(problems)}" if problems else ""
    return Tonight(pipelines=pipelines, problem=problem)


def _permitted(found: Sequence[Shown], user: Any) -> Iterator[Shown]:
    """Yield of the pipelines what Airflow's own pages would show: runs and tasks, and who is asked."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView

    may = rights([dag_id for each in found for dag_id in (each.dag_id, *each.broken_beside)], user)
    sees_errors = get_auth_manager().is_authorized_view(access_view=AccessView.IMPORT_ERRORS, user=user)
    for each in found:
        if not all(may(each.dag_id, what) for what in READ):
            continue
        if each.broken and not (sees_errors and all(map(may, each.broken_beside))):
            each = replace(each, broken=f"{CANNOT_READ} its file")  # noqa: PLW2901
        yield each if may(each.dag_id, "HITL_DETAIL") else without_questions(each)


async def _look() -> Looked:
    found = await run_in_threadpool(_look_at_pipelines)
    runs = [(each.dag_id, str(each.run_id)) for each in found if trains(each)]
    trainings, problems = await trainings_under_way(runs)
    by_run = {f"{dag_id}@{run_id}": several for (dag_id, run_id), several in trainings.items()}
    return Looked(pipelines=found, trainings=by_run, problems=problems)


def _look_at_pipelines() -> Sequence[Shown]:
    from airflow.utils.session import create_session

    with create_session(scoped=False) as session:
        return tables.pipelines(session)


_shared: Final = Shared(_look, pause=_FRESH_SECONDS)
