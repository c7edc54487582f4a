"""``/tonight``: how all pipelines stand, what needs a person first."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from mlops.contract.rest import Tonight
from mlops_provider.api.problems import DOCUMENTED
from mlops_provider.api.standings import ASKED, AT_WORK, PROMOTES, WAITING, Shown, Work, standing_of, urgency
from mlops_provider.experiments.names import tried_out
from mlops_provider.operator_keys import PIPELINE_TAG
from mlops_provider.operators.rollback import is_rollback
from mlops_provider.spec_file import SUFFIX

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

router = APIRouter(tags=["tonight"], responses=DOCUMENTED)

_FRESH_SECONDS: Final = 5.0
"""For so long all who look at one process of the server are shown the same."""
_MISTAKE: Final = re.compile(rf"(?:(?<=: )|^)(?P<name>[^\s:/]+){re.escape(SUFFIX)}:.*")
"""In the file of a pipeline, as a DAG file says it that reads them."""


@router.get("/tonight")
async def tonight(user: GetUserDep) -> Tonight:
    """List how the pipelines stand that the asker may read, those that need a person first."""
    return await run_in_threadpool(_tonight, user)


def _tonight(user: Any) -> Tonight:
    found = [standing_of(each) for each in _permitted(_ALL.get(), user)]
    return Tonight(pipelines=sorted(found, key=urgency))


def _permitted(found: Sequence[Shown], user: Any) -> Iterator[Shown]:
    """Yield of the pipelines what Airflow's own pages would show: runs and tasks, and who is asked."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
    from airflow.configuration import conf
    from airflow.models.dag import DagModel

    manager = get_auth_manager()
    teams: dict[str, str | None] = {}
    if conf.getboolean("core", "multi_team", fallback=False):
        teams = DagModel.get_dag_id_to_team_name_mapping([each.dag_id for each in found])

    def may(dag_id: str, what: DagAccessEntity | None) -> bool:
        details = DagDetails(id=dag_id, team_name=teams.get(dag_id))
        return bool(manager.is_authorized_dag(method="GET", user=user, access_entity=what, details=details))

    for each in found:
        if all(may(each.dag_id, what) for what in (None, DagAccessEntity.RUN, DagAccessEntity.TASK_INSTANCE)):
            yield each if may(each.dag_id, DagAccessEntity.HITL_DETAIL) else _without_questions(each)


def _without_questions(found: Shown) -> Shown:
    return replace(found, tasks=[task._replace(subject=None, approvers=()) for task in found.tasks])


class _Fresh:
    """What all pipelines do, read once for all who ask within a few seconds."""

    def __init__(self, look: Callable[[], Sequence[Shown]]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._found: Sequence[Shown] = ()
        self._until = 0.0

    def get(self) -> Sequence[Shown]:
        with self._lock:
            if time.monotonic() > self._until:
                self._found = self._look()
                self._until = time.monotonic() + _FRESH_SECONDS
            return self._found


def _look() -> Sequence[Shown]:
    from airflow.utils.session import create_session

    with create_session(scoped=False) as session:
        return read(session)


_ALL: Final = _Fresh(_look)


def read(session: Session) -> list[Shown]:
    """Read all pipelines, and of each the run that is under way, or else the newest: five queries, however many."""
    from airflow.models.dag import DagModel, DagTag
    from sqlalchemy import select

    dags = session.execute(
        select(
            DagModel.dag_id,
            DagModel.is_paused,
            DagModel.is_stale,
            DagModel.next_dagrun_create_after,
            DagModel.bundle_name,
            DagModel.relative_fileloc,
        )
        .join(DagTag, DagTag.dag_id == DagModel.dag_id)
        .where(DagTag.name == PIPELINE_TAG)
    ).all()
    ours = [dag for dag in dags if not tried_out(dag.dag_id) and not is_rollback(dag.dag_id)]
    broken = _broken(session, ours)
    # One that is stale and not broken is gone.
    ours = [dag for dag in ours if not dag.is_stale or dag.dag_id in broken]
    runs = _runs(session, [dag.dag_id for dag in ours])
    tasks = _tasks(session, [(dag_id, run.run_id) for dag_id, run in runs.items()])
    return [_shown(dag, broken.get(dag.dag_id, ""), runs.get(dag.dag_id), tasks.get(dag.dag_id, ())) for dag in ours]


def _broken(session: Session, dags: Sequence[Any]) -> dict[str, str]:
    """Why a file cannot be read, by pipeline: its DAG file, or its own, whose mistakes a DAG file says (dags/)."""
    from airflow.models.errors import ParseImportError
    from sqlalchemy import select

    errors = session.execute(
        select(ParseImportError.bundle_name, ParseImportError.filename, ParseImportError.stacktrace)
    ).all()
    files = {(error.bundle_name, error.filename): (error.stacktrace or "").strip() for error in errors}
    mistakes: dict[str, list[str]] = {}
    for line in (line for trace in files.values() for line in trace.splitlines()):
        if (mistake := _MISTAKE.search(line)) is not None:
            mistakes.setdefault(mistake["name"], []).append(mistake[0])
    found: dict[str, str] = {}
    for dag in dags:
        if dag.is_stale and dag.dag_id in mistakes:
            found[dag.dag_id] = "\n".join(mistakes[dag.dag_id])
        elif trace := files.get((dag.bundle_name, dag.relative_fileloc)):
            found[dag.dag_id] = f"Airflow cannot read {dag.relative_fileloc}: {trace.splitlines()[-1]}"
    return found


def _runs(session: Session, dag_ids: Sequence[str]) -> dict[str, Any]:
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun, DagRunNote
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select
    from sqlalchemy.orm import aliased

    columns = (
        select(
            DagRun.dag_id,
            DagRun.run_id,
            DagRun.state,
            DagRun.queued_at,
            DagRun.start_date,
            DagRun.end_date,
            DagRunNote.content,
            DagRunNote.user_id,
        )
        .select_from(DagRun)
        .join(DagRunNote, DagRunNote.dag_run_id == DagRun.id, isouter=True)
    )
    asks = (
        select(TaskInstance.id)
        .where(TaskInstance.dag_id == DagRun.dag_id, TaskInstance.run_id == DagRun.run_id, TaskInstance.state == ASKED)
        .exists()
    )
    # One that runs goes before a newer one that waits behind it or was cancelled; of these the one that asks somebody.
    under_way = columns.where(DagRun.state == "running", DagRun.dag_id.in_(dag_ids)).order_by(asks, DagRun.run_after)
    found = {run.dag_id: run for run in session.execute(under_way)}
    others = [dag_id for dag_id in dag_ids if dag_id not in found]
    run = aliased(DagRun)
    newest = (  # of each by itself: over all runs at once the whole history would be sorted
        select(run.id)
        .where(run.dag_id == DagModel.dag_id)
        .order_by(run.run_after.desc(), run.id.desc())
        .limit(1)
        .correlate(DagModel)
        .scalar_subquery()
    )
    ids = session.scalars(select(newest).select_from(DagModel).where(DagModel.dag_id.in_(others))).all()
    found |= {each.dag_id: each for each in session.execute(columns.where(DagRun.id.in_([i for i in ids if i])))}
    return found


def _shown(dag: Any, broken: str, run: Any, tasks: Sequence[Work]) -> Shown:
    common = {
        "dag_id": dag.dag_id,
        "is_paused": bool(dag.is_paused),
        "broken": broken,
        "next_run": dag.next_dagrun_create_after,
    }
    if run is None:
        return Shown(**common)
    return Shown(
        **common,
        run_id=run.run_id,
        state=str(run.state),
        begun_at=run.start_date or run.queued_at,
        ended_at=run.end_date,
        note=run.content or "",
        noted_by=run.user_id,
        tasks=tasks,
    )


def _tasks(session: Session, runs: Sequence[tuple[str, str]]) -> dict[str, list[Work]]:
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import or_, select, tuple_

    rows = session.execute(
        select(
            TaskInstance.dag_id,
            TaskInstance.task_id,
            TaskInstance.map_index,
            TaskInstance.operator,
            TaskInstance.state,
            TaskInstance.try_number,
            HITLDetail.subject,
            HITLDetail.assignees,
            HITLDetail.created_at,
        )
        .join(HITLDetail, HITLDetail.ti_id == TaskInstance.id, isouter=True)
        .where(tuple_(TaskInstance.dag_id, TaskInstance.run_id).in_(runs))
        .where(or_(TaskInstance.state.in_((*AT_WORK, *WAITING)), TaskInstance.operator == PROMOTES))
        .order_by(TaskInstance.start_date.is_(None), TaskInstance.start_date, TaskInstance.map_index)
    )
    found: dict[str, list[Work]] = {}
    for row in rows:
        approvers = [str(each.get("name") or each.get("id")) for each in row.assignees or ()]
        work = Work(
            row.task_id,
            row.map_index,
            row.operator or "",
            str(row.state),
            row.try_number,
            row.subject,
            approvers,
            row.created_at,
        )
        found.setdefault(row.dag_id, []).append(work)
    return found
