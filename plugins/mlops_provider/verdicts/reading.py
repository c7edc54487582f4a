"""The verdict of a run by what Airflow's database has of it, and of the nights before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mlops.contract.refs import ModelVersionRef, Ref, RefError, ref_from_wire
from mlops.contract.step import Failure
from mlops_provider.operator_keys import CODE_KEY, FAILURE_KEY, NEWS, NEWS_KEY, OPERATIONS_TAG, PROMOTES, ROLLS_BACK
from mlops_provider.verdicts.changes import Facts
from mlops_provider.verdicts.happened import Ended

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.orm import Session


class Night(NamedTuple):
    """A run of a pipeline."""

    dag_id: str
    run_id: str
    logical_date: datetime | None
    run_after: datetime
    interval_start: datetime | None
    interval_end: datetime | None
    conf: Any
    bundle_version: str | None

    @property
    def name(self) -> str:
        """``DAG@RUN``."""
        return f"{self.dag_id}@{self.run_id}"

    @property
    def due_at(self) -> datetime:
        """The time that it is of: its logical date, or where it has none, when it was due."""
        return self.logical_date or self.run_after


class _XCom(NamedTuple):
    """What a task has said."""

    task_id: str
    map_index: int
    key: str
    at: datetime
    value: Any


_MOST_ROLLBACKS: Final = 20
"""The newest ones, of all models, among which one of this model is looked for."""
_SKEW: Final = timedelta(minutes=1)
"""By which a worker's clock may be ahead of the server's."""


def tasks_of(session: Session, dag_id: str, run_id: str) -> list[Ended]:
    """Read the tasks of a run that has ended, in the order in which they did; those that never began come last."""
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    instances = session.execute(
        select(
            TaskInstance.task_id,
            TaskInstance.map_index,
            TaskInstance.state,
            TaskInstance.operator,
            TaskInstance.start_date,
            TaskInstance.end_date,
        ).where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id)
    ).all()
    xcoms = _xcoms(session, dag_id, run_id, NEWS_KEY, FAILURE_KEY)
    said = {(each.task_id, each.map_index, each.key): each for each in xcoms}

    def of(each: Any, key: str) -> Mapping[str, Any]:
        return _said(said.get((each.task_id, each.map_index, key)), each.start_date)

    return [
        Ended(
            task_id=each.task_id,
            map_index=each.map_index,
            state=str(each.state),
            operator=each.operator or "",
            has_begun=each.start_date is not None,
            news=_text(of(each, NEWS_KEY), NEWS),
            failure=_told(of(each, FAILURE_KEY)),
        )
        for each in sorted(instances, key=lambda each: (each.end_date is None, each.end_date))
    ]


def night_of(session: Session, dag_id: str, run_id: str) -> Night | None:
    """Read a run; None where there is none."""
    from airflow.models.dagrun import DagRun

    row = session.execute(_columns().where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)).one_or_none()
    return None if row is None else Night(*row)


def last_good(session: Session, night: Night) -> Night | None:
    """Read the newest earlier run of the pipeline that ended well."""
    from airflow.models.dagrun import DagRun

    good = _columns().where(*_before(night), DagRun.state == "success").order_by(_due().desc(), DagRun.id.desc())
    row = session.execute(good.limit(1)).first()
    return None if row is None else Night(*row)


def failed_since(session: Session, night: Night, good: Night | None) -> list[datetime]:
    """Read when the runs were due that failed between the last good one and this one, the oldest first."""
    from airflow.models.dagrun import DagRun

    failed = _columns().where(*_before(night), DagRun.state == "failed")
    if good is not None:
        failed = failed.where(_due() > good.due_at)
    return sorted(Night(*row).due_at for row in session.execute(failed))


def _columns() -> Select[Any]:
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select

    return select(
        DagRun.dag_id,
        DagRun.run_id,
        DagRun.logical_date,
        DagRun.run_after,
        DagRun.data_interval_start,
        DagRun.data_interval_end,
        DagRun.conf,
        DagRun.bundle_version,
    )


def _before(night: Night) -> Sequence[Any]:
    from airflow.models.dagrun import DagRun

    return DagRun.dag_id == night.dag_id, _due() < night.due_at


def _due() -> Any:
    """
    As :attr:`Night.due_at`: nights that are caught up with, or run again, come in the order of their days. No index is
    over it, and none would help: by the one over run_after PostgreSQL walks back through the nights of all pipelines.
    """
    from airflow.models.dagrun import DagRun
    from sqlalchemy import func

    return func.coalesce(DagRun.logical_date, DagRun.run_after)


def last_promoted(session: Session, night: Night) -> str:
    """Say which version a run of the pipeline has put into production last, up to a night; empty where none has."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import and_, select

    of_run = and_(DagRun.dag_id == TaskInstance.dag_id, DagRun.run_id == TaskInstance.run_id)
    promoted = (
        select(TaskInstance.run_id, TaskInstance.task_id, TaskInstance.end_date, DagRun.logical_date, DagRun.run_after)
        .join(DagRun, of_run)
        .where(TaskInstance.dag_id == night.dag_id, TaskInstance.operator == PROMOTES, TaskInstance.state == "success")
        .where(DagRun.run_after <= night.run_after)
        .order_by(TaskInstance.end_date.desc())
    )
    found = session.execute(promoted.limit(1)).first()
    if found is None:
        return ""
    day = f"{found.logical_date or found.run_after:%Y-%m-%d}"
    version = _refs(session, night.dag_id, found.run_id, found.task_id).get(found.task_id)
    if not isinstance(version, ModelVersionRef):
        return f"that of {day}"
    back = _rolled_back(session, version.name, found.end_date)
    since = "" if back is None else f", and version {back} was put back since"
    return f"version {version.version} of {version.name}, of {day}{since}"


def _rolled_back(session: Session, model: str, since: datetime) -> str | None:
    """Return the version of a model that a run of a rollback's DAG has put into production since then."""
    from airflow.models.dag import DagTag
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    dags = select(DagTag.dag_id).where(DagTag.name == OPERATIONS_TAG)
    done = (
        select(TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id)
        .where(TaskInstance.dag_id.in_(dags), TaskInstance.operator == ROLLS_BACK, TaskInstance.state == "success")
        .where(TaskInstance.end_date > since)
        .order_by(TaskInstance.end_date.desc())
    )
    for dag_id, run_id, task_id in session.execute(done.limit(_MOST_ROLLBACKS)).all():
        version = _refs(session, dag_id, run_id, task_id).get(task_id)
        if isinstance(version, ModelVersionRef) and version.name == model:
            return version.version
    return None


def facts(session: Session, night: Night) -> Facts:
    """Read what a run is compared by."""
    from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
    from sqlalchemy import select

    of_run = (Rendered.dag_id == night.dag_id, Rendered.run_id == night.run_id, Rendered.map_index == -1)
    rows = session.execute(select(Rendered.task_id, Rendered.rendered_fields).where(*of_run).order_by(Rendered.task_id))
    told = _xcoms(session, night.dag_id, night.run_id, CODE_KEY)
    rendered = {task: fields for task, fields in rows if isinstance(fields, Mapping)}
    return Facts(
        moments=[each for each in (night.due_at, night.interval_start, night.interval_end) if each is not None],
        given=night.conf if isinstance(night.conf, Mapping) else {},
        # Longer ones Airflow keeps as text that was cut off.
        settings={task: own for task, each in rendered.items() if isinstance(own := each.get("settings"), Mapping)},
        # Of a search all trials run the same.
        code={
            each.task_id: {path: digest for path, digest in each.value.items() if isinstance(digest, str)}
            for each in told
            if isinstance(each.value, Mapping)
        },
        refs=_refs(session, night.dag_id, night.run_id),
        bundle=night.bundle_version or "",
        version=_version(session, night),
    )


def _version(session: Session, night: Night) -> int | None:
    """Return the newest version of the DAG that a task of a run has run by."""
    from airflow.models.dag_version import DagVersion
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import func, select

    newest = select(func.max(DagVersion.version_number)).join(
        TaskInstance, TaskInstance.dag_version_id == DagVersion.id
    )
    return session.scalar(newest.where(TaskInstance.dag_id == night.dag_id, TaskInstance.run_id == night.run_id))


def _refs(session: Session, dag_id: str, run_id: str, task_id: str | None = None) -> dict[str, Ref]:
    from airflow.models.xcom import XCOM_RETURN_KEY

    found = {}
    for each in _xcoms(session, dag_id, run_id, XCOM_RETURN_KEY, task_id=task_id):
        if each.map_index == -1:
            try:
                found[each.task_id] = ref_from_wire(each.value)
            except (RefError, TypeError):  # another operator's, edited by somebody, or kept elsewhere by a backend
                continue
    return found


def _xcoms(session: Session, dag_id: str, run_id: str, *keys: str, task_id: str | None = None) -> list[_XCom]:
    """Read what the tasks of a run, or one of them, have said under some keys, the earliest first."""
    from airflow.models.xcom import XComModel
    from sqlalchemy import select

    of_run = (XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.key.in_(keys))
    told = select(XComModel).where(*of_run).order_by(XComModel.timestamp)
    rows = session.scalars(told if task_id is None else told.where(XComModel.task_id == task_id))
    return [_XCom(row.task_id, row.map_index, row.key, row.timestamp, XComModel.deserialize_value(row)) for row in rows]


def _said(said: _XCom | None, since: datetime | None) -> Mapping[str, Any]:
    """
    Return what a task has said; nothing where it said nothing, or before it was cleared, or somebody has edited it, or
    an XCom backend keeps it elsewhere.
    """
    if said is None or since is None or said.at < since - _SKEW or not isinstance(said.value, Mapping):
        return {}
    return said.value


def _told(said: Mapping[str, Any]) -> Failure | None:
    message = _text(said, "message")
    if not message:
        return None
    return Failure(_text(said, "type"), message, bool(said.get("retryable", True)), {})


def _text(said: Mapping[str, Any], name: str) -> str:
    text = said.get(name)
    return text if isinstance(text, str) else ""
