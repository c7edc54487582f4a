"""Runs of Airflow, as lists of runs have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlops.contract.rest import RunKind, RunSummary
from mlops_provider.airflow_pages import run_page
from mlops_provider.experiments.names import NOTED, tried_out
from mlops_provider.operators.rollback import is_rollback


def summary_of(run: Mapping[str, Any]) -> RunSummary:
    dag_id, run_id = run["dag_id"], run["dag_run_id"]
    kind = kind_of(dag_id)
    return RunSummary(
        id=f"{dag_id}@{run_id}",
        kind=kind,
        pipeline=None if kind == "rollback" else tried_out(dag_id) or dag_id,
        state=run["state"],
        user=run["triggering_user_name"],
        asked={name: value for name, value in (run["conf"] or {}).items() if kind != "experiment" or name not in NOTED},
        queued_at=run["queued_at"],
        started_at=run["start_date"],
        ended_at=run["end_date"],
        note=run["note"],
        airflow=run_page(dag_id, run_id),
    )


def kind_of(dag_id: str) -> RunKind:
    if tried_out(dag_id):
        return "experiment"
    return "rollback" if is_rollback(dag_id) else "night"
