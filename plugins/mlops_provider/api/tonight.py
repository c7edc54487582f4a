"""``/tonight``: how all pipelines stand, those that need a person first. ``/nights``: what came of one's runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from mlops.contract.rest import MOST_RUNS, Nights, Tonight
from mlops_provider.api import tables
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.api.rights import READ, rights
from mlops_provider.api.shared import RETRY_MILLISECONDS, STREAM_SECONDS, Shared
from mlops_provider.api.standings import CANNOT_READ, Shown, night_of, standing_of, urgency, without_questions

router = APIRouter(tags=["tonight"], responses=DOCUMENTED)

_FRESH_SECONDS: Final = 5.0
"""For so long all who look at one process of the server are shown the same."""
_LOOK_SECONDS: Final = 1.0
_DAG_PATTERN: Final = r"^[\w.-]+$"


@router.get("/tonight")
async def tonight(user: GetUserDep) -> Tonight:
    """List how the pipelines stand that the asker may read, those that need a person first."""
    return await run_in_threadpool(_tonight, await _shared.look(), user)


async def _look_first() -> Sequence[Shown]:
    """Before the answer begins: what fails then is an error, and not a stream that ends."""
    return await _shared.look()


@router.get("/tonight/stream", response_class=EventSourceResponse)
async def stream(
    user: GetUserDep, found: Annotated[Sequence[Shown], Depends(_look_first)]
) -> AsyncIterator[ServerSentEvent]:
    """
    The same live: event `tonight` at once, and again when something has changed. It ends after some seconds; browsers
    open it again by themselves, and then log in again, too.
    """
    begun = time.monotonic()
    before: Sequence[Shown] | None = None
    told: Tonight | None = None
    yield ServerSentEvent(retry=RETRY_MILLISECONDS)
    while time.monotonic() < begun + STREAM_SECONDS:
        if found != before:
            # What the user may read is asked for only then: with many pipelines that takes longer than all else.
            before, now = found, await run_in_threadpool(_tonight, found, user)
            if now != told:
                told = now
                yield ServerSentEvent(event="tonight", data=now)
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
    return Tonight(pipelines=sorted(told, key=urgency))


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


def _look() -> Sequence[Shown]:
    from airflow.utils.session import create_session

    with create_session(scoped=False) as session:
        return tables.pipelines(session)


_shared: Final = Shared(lambda: run_in_threadpool(_look), pause=_FRESH_SECONDS)
