"""Kubernetes Jobs of steps that nobody follows any more, e.g. because Airflow's database was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import httpx

from mlops_provider.launchers.kubernetes.api import JOBS, Manifest, open_api
from mlops_provider.launchers.kubernetes.manifests import DAG_ID, DEPLOYMENT, MANAGED_BY, MAP_INDEX, RUN_ID, TASK_ID
from mlops_provider.local.client import AirflowClient
from mlops_provider.operators.runs import TERMINAL

_FOLLOWING = frozenset(
    {"scheduled", "queued", "running", "deferred", "up_for_retry", "up_for_reschedule", "restarting"}
)
"""States of a task instance that will look for its Job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphan:
    job: str
    uid: str
    created: str
    """ISO 8601."""
    task: str
    """``dag / run / task``."""
    why: str


def find_orphans(connection: str | None, namespace: str, deployment: str, airflow: AirflowClient) -> Sequence[Orphan]:
    """
    Jobs whose task instance is over, or gone.

    :param deployment: see :func:`deployment_id`; another Airflow's Jobs are not ours to judge
    """

    async def work() -> Sequence[Manifest]:
        async with open_api(connection, namespace) as api:
            selector = ",".join(f"{name}={value}" for name, value in {**MANAGED_BY, DEPLOYMENT: deployment}.items())
            items: Sequence[Manifest] = (await api.list(JOBS, labelSelector=selector))["items"]
            return items

    found = []
    for job in asyncio.run(work()):
        metadata = job["metadata"]
        annotations = metadata.get("annotations", {})
        dag_id, run_id, task_id, index = (annotations.get(name, "") for name in (DAG_ID, RUN_ID, TASK_ID, MAP_INDEX))
        if run_id.startswith(TERMINAL):  # it ends with its work, or its deadline
            continue
        why = _why_orphaned(airflow, dag_id, run_id, task_id, index)
        if why is not None and not metadata.get("deletionTimestamp"):
            found.append(
                Orphan(
                    job=metadata["name"],
                    uid=metadata["uid"],
                    created=metadata["creationTimestamp"],
                    task=f"{dag_id} / {run_id} / {task_id}" + (f"[{index}]" if index not in ("", "-1") else ""),
                    why=why,
                )
            )
    return found


def remove_orphans(connection: str | None, namespace: str, orphans: Sequence[Orphan]) -> None:
    async def work() -> None:
        async with open_api(connection, namespace) as api:
            for orphan in orphans:
                await api.delete(JOBS, orphan.job, orphan.uid)

    asyncio.run(work())


def _why_orphaned(airflow: AirflowClient, dag_id: str, run_id: str, task_id: str, index: str) -> str | None:
    path = f"/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}/taskInstances/{quote(task_id, safe='')}"
    try:
        task = airflow.request("GET", path + (f"/{index}" if index not in ("", "-1") else ""))
    except httpx.HTTPStatusError as error:
        if error.response.status_code == 404:
            return "Airflow has no such task instance"
        raise
    # None: cleared, and not scheduled again yet.
    return None if task["state"] in {*_FOLLOWING, None} else f"the task is {task['state']}"
