"""Rows of Airflow's database: pipelines, their runs and tasks, as many as a test or a benchmark needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.xcom import XComModel
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

BUNDLE = "dags-folder"
_numbers = count(1)


@contextmanager
def database(url: str) -> Iterator[Session]:
    """Make Airflow's tables in an empty database."""
    engine = create_engine(url)
    import_all_models()
    Base.metadata.create_all(engine)
    try:
        with Session(engine) as session:
            put(session, "dag_bundle", {"name": BUNDLE, "active": True})
            yield session
    finally:
        engine.dispose()


def put(session: Session, table: str, *rows: dict[str, Any]) -> None:
    session.connection().execute(Base.metadata.tables[table].insert(), list(rows))


def add_dag(session: Session, dag_id: str, *, file: str = "pipelines.py", tag: str = "mlops", **fields: Any) -> None:
    common = {
        "dag_id": dag_id, "bundle_name": BUNDLE, "relative_fileloc": file, "is_paused": False, "is_stale": False,
        "max_active_tasks": 16, "max_consecutive_failed_dag_runs": 0, "has_task_concurrency_limits": False,
    }  # fmt: skip
    put(session, "dag", common | fields)
    put(session, "dag_tag", {"name": tag, "dag_id": dag_id})


def add_run(session: Session, dag_id: str, run_id: str, state: str, run_after: datetime, **fields: Any) -> int:
    """
    :return: its number in the database
    """
    number = next(_numbers)
    common = {
        "id": number, "dag_id": dag_id, "run_id": run_id, "state": state, "run_type": "scheduled",
        "logical_date": run_after, "run_after": run_after, "start_date": run_after, "queued_at": run_after,
    }  # fmt: skip
    put(session, "dag_run", common | fields)
    return number


def add_task(session: Session, dag_id: str, run_id: str, task_id: str, state: str, **fields: Any) -> UUID:
    """
    :return: its id
    """
    identifier = uuid4()
    common = {
        "id": identifier, "dag_id": dag_id, "run_id": run_id, "task_id": task_id, "state": state, "map_index": -1,
        "try_number": 1, "pool": "default_pool", "operator": "TrainOperator",
    }  # fmt: skip
    put(session, "task_instance", common | fields)
    return identifier


def add_xcom(
    session: Session, run: int, run_id: str, task_id: str, key: str, value: Any, at: datetime, dag_id: str = "flights"
) -> None:
    """
    :param run: its number in the database
    """
    place = {"dag_run_id": run, "dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": -1}
    put(session, "xcom", place | {"key": key, "value": XComModel.serialize_value(value), "timestamp": at})


def add_rendered(session: Session, run_id: str, task_id: str, fields: dict[str, Any], dag_id: str = "flights") -> None:
    place = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": -1}
    put(session, "rendered_task_instance_fields", place | {"rendered_fields": fields})
