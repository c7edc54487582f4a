"""How 500 pipelines stand (``GET /tonight``), as read from a PostgreSQL that has years of their nights."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from sqlalchemy import text
from sqlalchemy.orm import Session

from benchmarks.record import Record, compare
from benchmarks.rounds import OURS, in_rotation, paired
from mlops_provider.api import tables
from mlops_provider.api.standings import standing_of, urgency
from tests.airflow_rows import add_dag, database
from tests.services import postgres_server

NUM = int(os.environ.get("PIPELINES", "500"))
NIGHTS = 1000
FEW_NIGHTS = 100
ROUNDS = 9
PAGE_MS = 200.0
TASKS = ("ingest", "validate", "features", "train", "evaluate", "register", "approve", "promote")

_RUNS = """
    INSERT INTO dag_run (id, dag_id, run_id, state, run_type, logical_date, run_after, start_date, queued_at, end_date,
                         clear_number, span_status)
    SELECT pipeline * :nights + night, 'pipeline_' || pipeline, 'night_' || night,
           CASE WHEN night = :nights AND pipeline % 5 = 0 THEN 'running' ELSE 'success' END,
           'scheduled', moment, moment, moment, moment, moment, 0, 'not_started'
    FROM generate_series(1, :pipelines) pipeline, generate_series(1, :nights) night,
         LATERAL (SELECT now() - (:nights - night) * interval '1 day'
                         - CASE WHEN pipeline % 7 = 0 THEN interval '5000 days' ELSE interval '0' END AS moment) moments
"""
_NOTES = """
    INSERT INTO dag_run_note (dag_run_id, content, created_at, updated_at)
    SELECT id, 'Version 3 of it is in production.', now(), now() FROM dag_run
"""
_TASKS = """
    INSERT INTO task_instance (id, dag_id, run_id, task_id, map_index, state, try_number, pool, operator, start_date,
                               max_tries, hostname, unixname, pool_slots, queue, priority_weight, span_status)
    SELECT gen_random_uuid(), dag_id, run_id, task, -1,
           CASE WHEN state = 'running' AND task = 'promote' THEN 'running' ELSE 'success' END, 1, 'default_pool',
           initcap(task) || 'Operator', start_date, 1, '', '', 1, 'default', 1, 'not_started'
    FROM dag_run, unnest(:tasks) task
"""


def measure(home: Path, scratch: Path) -> list[Record]:
    with ExitStack() as stack:
        few, many = (stack.enter_context(_fleet(nights)) for nights in (FEW_NIGHTS, NIGHTS))
        times = in_rotation({OURS: _look(many), "few": _look(few)}, ROUNDS)
    ours, with_few = paired(times[OURS], times["few"])
    return [
        compare(
            "fleet.tonight",
            unit="ms",
            ours=median(times[OURS]),
            baseline=f"{PAGE_MS:.0f} ms, for a page that does not make one wait",
            baseline_value=PAGE_MS,
            target=1,
        ),
        compare(
            "fleet.tonight_with_a_long_history",
            unit="ms",
            ours=ours,
            baseline=f"{FEW_NIGHTS} nights of each pipeline, not {NIGHTS}",
            baseline_value=with_few,
            target=2,
        ),
    ]


@contextmanager
def _fleet(nights: int) -> Iterator[Session]:
    """Fill a database with what nights of pipelines leave in it."""
    with postgres_server() as url, database(url.replace("postgresql:", "postgresql+psycopg2:")) as session:
        for number in range(1, NUM + 1):
            add_dag(session, f"pipeline_{number}")
        session.execute(text(_RUNS), {"pipelines": NUM, "nights": nights})
        session.execute(text(_NOTES))
        session.execute(text(_TASKS), {"tasks": list(TASKS)})
        # Some have not run for years, one never.
        add_dag(session, "new", is_paused=True)
        session.commit()
        session.execute(text("ANALYZE"))
        session.commit()
        yield session


def _look(session: Session) -> Callable[[], float]:
    """:return: what looks once, in milliseconds"""

    def look() -> float:
        begin = time.perf_counter()
        found = sorted(map(standing_of, tables.pipelines(session)), key=urgency)
        session.rollback()
        assert len(found) == NUM + 1
        return (time.perf_counter() - begin) * 1e3

    return look
