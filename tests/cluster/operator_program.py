"""
The provider's own pod operator against a cluster: ``python operator_program.py <kubeconfig> <namespace>``.

A process of its own, so that Airflow finds the test's home and no other. Prints what Airflow logs, and last one JSON
document of what happened.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.serde import deserialize, serialize
from airflow.triggers.base import TriggerEvent


def main(kubeconfig: str, namespace: str) -> None:
    """Run a pod in the task, one that fails, and one that is waited for by the trigger."""

    def operator(task: str, script: str, **settings: Any) -> KubernetesPodOperator:
        return KubernetesPodOperator(
            task_id=task,
            name=task,
            namespace=namespace,
            image="tools:1",
            cmds=["sh", "-c", script],
            in_cluster=False,
            config_file=kubeconfig,
            kubernetes_conn_id=None,
            startup_check_interval_seconds=1,
            termination_grace_period=1,
            **settings,
        )

    found: dict[str, Any] = {}
    operator("good", "echo first; sleep 1; echo from-the-pod").execute(context("good"))
    try:
        operator("bad", "exit 3", on_finish_action="keep_pod").execute(context("bad"))
    except Exception as error:
        found["failure"] = type(error).__name__
    waiting = operator("later", "sleep 2; echo waited-for", deferrable=True, poll_interval=0.2)
    try:
        waiting.execute(context("later"))
    except TaskDeferred as deferral:
        path, arguments = deferral.trigger.serialize()
        wire = json.dumps(serialize(arguments))
        received: Any = deserialize(json.loads(wire))
        trigger = type(deferral.trigger)(**received)
        start = time.monotonic()
        event = asyncio.run(first_event(trigger))
        found["trigger"] = [path, event.payload["status"], round(time.monotonic() - start)]
        waiting.trigger_reentry(context("later"), event.payload)
    print(json.dumps(found))


async def first_event(trigger: Any) -> TriggerEvent:
    """What the triggerer would send."""
    events: AsyncIterator[TriggerEvent] = trigger.run()
    async for event in events:
        return event
    raise AssertionError("the trigger ended without an event")


def context(task: str) -> Any:
    """As much of a task's context as the operator looks at."""
    ti = Mock(dag_id="dag", task_id=task, map_index=-1, try_number=1, start_date=datetime.now(UTC))
    return {"ti": ti, "task_instance": ti, "run_id": "run", "dag": SimpleNamespace(dag_id="dag")}


if __name__ == "__main__":
    main(*sys.argv[1:])
