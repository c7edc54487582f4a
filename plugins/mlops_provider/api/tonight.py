"""``/tonight``: how all pipelines stand, those that need a person first. ``/nights``: what came of one's runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from mlops.contract.rest import MOST_RUNS, Nights, Tonight
from mlops_provider.api import tables
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.api.shared import Shared
from mlops_provider.api.standings import CANNOT_READ, Shown, night_of, standing_of, urgency

router = APIRouter(tags=["tonight"], responses=DOCUMENTED)

_FRESH_SECONDS: Final = 5.0
"""For so long all who look at one process of the server are shown the same."""
_READ: Final = (None, "RUN", "TASK_INSTANCE")
"""What of a DAG one must be able to read to see how it stands; None: itself."""
_DAG_PATTERN: Final = r"^[\w.-]+$"


@router.get("/tonight")
async def tonight(user: GetUserDep) -> Tonight:
    """List how the pipelines stand that the asker may read, those that need a person first."""
    return await run_in_threadpool(_tonight, await _shared.look(), user)


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

    may = _rights([pipeline], user)
    if all(may(pipeline, what) for what in _READ):
        with create_session(scoped=False) as session:
            found = tables.nights(session, pipeline, limit)
        if found is not None:
            asks, judges = may(pipeline, "HITL_DETAIL"), may(pipeline, "XCOM")
            told = [
                night_of(shown if asks else _without_questions(shown), due_at, evaluation if judges else None)
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

    may = _rights([dag_id for each in found for dag_id in (each.dag_id, *each.broken_beside)], user)
    sees_errors = get_auth_manager().is_authorized_view(access_view=AccessView.IMPORT_ERRORS, user=user)
    for each in found:
        if not all(may(each.dag_id, what) for what in _READ):
            continue
        if each.broken and not (sees_errors and all(map(may, each.broken_beside))):
            each = replace(each, broken=f"{CANNOT_READ} its file")  # noqa: PLW2901
        yield each if may(each.dag_id, "HITL_DETAIL") else _without_questions(each)


def _rights(dag_ids: Sequence[str], user: Any) -> Callable[..., bool]:
    """
    Return what says whether a user may read something of a DAG: ``may(dag_id)`` of itself, ``may(dag_id, "RUN")`` of
    what is Airflow's ``DagAccessEntity``.
    """
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
    from airflow.configuration import conf
    from airflow.models.dag import DagModel

    manager = get_auth_manager()
    teams: dict[str, str | None] = {}
    if conf.getboolean("core", "multi_team", fallback=False):
        teams = DagModel.get_dag_id_to_team_name_mapping(list(dag_ids))

    def may(dag_id: str, what: str | None = None) -> bool:
        entity = None if what is None else DagAccessEntity(what)
        details = DagDetails(id=dag_id, team_name=teams.get(dag_id))
        return bool(manager.is_authorized_dag(method="GET", user=user, access_entity=entity, details=details))

    return may


def _without_questions(found: Shown) -> Shown:
    return replace(found, tasks=[task._replace(subject=None, approvers=()) for task in found.tasks])


def _look() -> Sequence[Shown]:
    from airflow.utils.session import create_session

    with create_session(scoped=False) as session:
        return tables.pipelines(session)


_shared: Final = Shared(lambda: run_in_threadpool(_look), pause=_FRESH_SECONDS)
