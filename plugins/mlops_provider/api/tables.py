"""What Airflow's database has of pipelines and their runs: a few queries, however many there are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from mlops.contract.rest import Judged
from mlops_provider.api.evaluations import evaluation_of, judged
from mlops_provider.api.standings import ASKED, AT_WORK, CANNOT_READ, WAITING, Shown, Work
from mlops_provider.experiments.names import tried_out
from mlops_provider.operator_keys import EVALUATES, PIPELINE_TAG, PROMOTES
from mlops_provider.operators.rollback import is_rollback
from mlops_provider.run_notes import is_ours
from mlops_provider.spec_file import SUFFIX

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.orm import Session

_MISTAKE: Final = re.compile(rf"(?:(?<=: )|^)(?P<name>[^\s:/]+){re.escape(SUFFIX)}:.*")
"""In the file of a pipeline, as a DAG file says it that reads them."""
_LATELY: Final = timedelta(days=8)
"""So that a weekly run is in it."""


def pipelines(session: Session) -> list[Shown]:
    """Read all pipelines, and of each the run that is under way, or else the newest."""
    dags = session.execute(_dag_columns()).all()
    ours = [dag for dag in dags if not tried_out(dag.dag_id) and not is_rollback(dag.dag_id)]
    broken = _broken(session, ours)
    # One that is stale and not broken is gone.
    ours = [dag for dag in ours if not dag.is_stale or dag.dag_id in broken]
    runs = _runs(session, [dag.dag_id for dag in ours])
    tasks = _tasks(session, list(runs.values()))
    return [_shown(dag, runs.get(dag.dag_id), tasks, *broken.get(dag.dag_id, ())) for dag in ours]


def nights(session: Session, dag_id: str, limit: int) -> list[tuple[Shown, datetime, Judged | None]] | None:
    """
    Read the newest runs of a pipeline, each with the time that it is of, and with its newest evaluation.

    :return: None where there is no such pipeline
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun

    dag = session.execute(_dag_columns().where(DagModel.dag_id == dag_id)).one_or_none()
    if dag is None:
        return None
    newest = _run_columns().where(DagRun.dag_id == dag_id).order_by(DagRun.run_after.desc(), DagRun.id.desc())
    runs = session.execute(newest.limit(limit)).all()
    tasks = _tasks(session, runs)
    evaluations = _judged(session, dag_id, [run.run_id for run in runs])
    return [(_shown(dag, run, tasks), run.logical_date or run.run_after, evaluations.get(run.run_id)) for run in runs]


def night(session: Session, dag_id: str, run_id: str) -> Shown | None:
    """Read a run of a pipeline; None where there is none."""
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun

    dag = session.execute(_dag_columns().where(DagModel.dag_id == dag_id)).one_or_none()
    run = session.execute(_run_columns().where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)).one_or_none()
    return None if dag is None or run is None else _shown(dag, run, _tasks(session, [run]))


def _dag_columns() -> Select[*tuple[Any, ...]]:
    from airflow.models.dag import DagModel, DagTag
    from sqlalchemy import select

    return (
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
    )


def _judged(session: Session, dag_id: str, run_ids: Sequence[str]) -> Mapping[str, Judged]:
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XCOM_RETURN_KEY, XComModel
    from sqlalchemy import and_, select

    task = and_(
        TaskInstance.dag_id == XComModel.dag_id,
        TaskInstance.run_id == XComModel.run_id,
        TaskInstance.task_id == XComModel.task_id,
        TaskInstance.map_index == XComModel.map_index,
    )
    returned = session.scalars(
        select(XComModel)
        .join(TaskInstance, task)
        .where(XComModel.dag_id == dag_id, XComModel.run_id.in_(run_ids), XComModel.key == XCOM_RETURN_KEY)
        .where(TaskInstance.operator == EVALUATES, TaskInstance.state == "success")
        .order_by(XComModel.timestamp)
    )
    found = {}
    for each in returned:
        if (report := evaluation_of(XComModel.deserialize_value(each))) is not None:
            with suppress(ValueError):  # edited by somebody
                found[each.run_id] = judged(report)
    return found


def _broken(session: Session, dags: Sequence[Any]) -> dict[str, tuple[str, Sequence[str]]]:
    """
    Why files cannot be read, by pipeline: its DAG file, or its own, whose mistakes a DAG file says (dags/).

    :return: the reason, and the DAGs that one must be able to read to see it
    """
    from airflow.models.dag import DagModel
    from airflow.models.errors import ParseImportError
    from sqlalchemy import select, tuple_

    errors = session.execute(
        select(ParseImportError.bundle_name, ParseImportError.filename, ParseImportError.stacktrace)
    ).all()
    files = {(error.bundle_name, error.filename): (error.stacktrace or "").strip() for error in errors}
    if not files:
        return {}
    mistakes: dict[tuple[str, str], list[str]] = {}
    for (bundle, _), trace in files.items():
        for mistake in filter(None, map(_MISTAKE.search, trace.splitlines())):
            mistakes.setdefault((bundle, mistake["name"]), []).append(mistake[0])
    place = tuple_(DagModel.bundle_name, DagModel.relative_fileloc)
    beside: dict[tuple[str, str | None], list[str]] = {}
    columns = select(DagModel.dag_id, DagModel.bundle_name, DagModel.relative_fileloc)
    for dag_id, bundle, filename in session.execute(columns.where(place.in_(list(files)))):
        beside.setdefault((bundle, filename), []).append(dag_id)
    found: dict[str, tuple[str, Sequence[str]]] = {}
    for dag in dags:
        file = (dag.bundle_name, dag.relative_fileloc)
        if dag.is_stale and (own := mistakes.get((dag.bundle_name, dag.dag_id))):
            found[dag.dag_id] = "\n".join(own), ()
        elif trace := files.get(file):
            found[dag.dag_id] = f"{CANNOT_READ} {dag.relative_fileloc}: {trace.splitlines()[-1]}", beside[file]
    return found


def _runs(session: Session, dag_ids: Sequence[str]) -> dict[str, Any]:
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk.timezone import utcnow
    from sqlalchemy import func, select
    from sqlalchemy.orm import aliased

    columns = _run_columns()
    asks = (
        select(TaskInstance.id)
        .where(TaskInstance.dag_id == DagRun.dag_id, TaskInstance.run_id == DagRun.run_id, TaskInstance.state == ASKED)
        .exists()
    )
    # One that runs goes before a newer one that waits behind it or was cancelled; of these the one that asks somebody.
    under_way = columns.where(DagRun.state == "running", DagRun.dag_id.in_(dag_ids)).order_by(asks, DagRun.run_after)
    found = {run.dag_id: run for run in session.execute(under_way)}
    others = [dag_id for dag_id in dag_ids if dag_id not in found]
    # Most have run lately, which the index over the time finds; of the rest each one's runs are sorted. Left to itself,
    # PostgreSQL walks that index back through the nights of all others.
    lately = DagRun.run_after > utcnow() - _LATELY
    recent = select(DagRun.dag_id, DagRun.id).where(lately, DagRun.dag_id.in_(others)).order_by(DagRun.run_after)
    newest: dict[str, int] = dict(session.execute(recent).tuples().all())
    run = aliased(DagRun)
    last = (
        select(run.id)
        .where(run.dag_id == DagModel.dag_id)
        .order_by(func.coalesce(run.run_after, run.queued_at).desc())
        .limit(1)
        .correlate(DagModel)
        .scalar_subquery()
    )
    rest = [dag_id for dag_id in others if dag_id not in newest]
    ids = [*newest.values(), *session.scalars(select(last).select_from(DagModel).where(DagModel.dag_id.in_(rest)))]
    rows = session.execute(columns.where(DagRun.id.in_([each for each in ids if each is not None])))
    return found | {each.dag_id: each for each in rows}


def _run_columns() -> Select[Any]:
    from airflow.models.dagrun import DagRun, DagRunNote
    from sqlalchemy import select

    return (
        select(
            DagRun.dag_id,
            DagRun.run_id,
            DagRun.state,
            DagRun.logical_date,
            DagRun.run_after,
            DagRun.created_at,
            DagRun.queued_at,
            DagRun.start_date,
            DagRun.end_date,
            DagRunNote.content,
            DagRunNote.user_id,
            DagRunNote.created_at.label("noted_at"),
        )
        .select_from(DagRun)
        .join(DagRunNote, DagRunNote.dag_run_id == DagRun.id, isouter=True)
    )


def _shown(
    dag: Any,
    run: Any,
    tasks: Mapping[tuple[str, str], Sequence[Work]],
    broken: str = "",
    broken_beside: Sequence[str] = (),
) -> Shown:
    common = {
        "dag_id": dag.dag_id,
        "is_paused": bool(dag.is_paused),
        "broken": broken,
        "broken_beside": broken_beside,
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
        is_noted=bool(run.content) and not is_ours(run.user_id, run.noted_at, run.created_at or run.run_after),
        tasks=tasks.get((run.dag_id, run.run_id), ()),
    )


def _tasks(session: Session, runs: Sequence[Any]) -> dict[tuple[str, str], list[Work]]:
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import or_, select, tuple_

    rows = session.execute(
        select(
            TaskInstance.dag_id,
            TaskInstance.run_id,
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
        .where(tuple_(TaskInstance.dag_id, TaskInstance.run_id).in_([(run.dag_id, run.run_id) for run in runs]))
        .where(or_(TaskInstance.state.in_((*AT_WORK, *WAITING)), TaskInstance.operator == PROMOTES))
        .order_by(TaskInstance.start_date.is_(None), TaskInstance.start_date, TaskInstance.map_index)
    )
    found: dict[tuple[str, str], list[Work]] = {}
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
        found.setdefault((row.dag_id, row.run_id), []).append(work)
    return found
