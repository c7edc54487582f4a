"""
How patient a local Airflow is with its own parts.

Airflow tells the dead from the slow by the clock alone: a scheduler whose loop takes longer than the health threshold
declares itself dead and takes its running tasks for orphans, a task whose heartbeats time out is run again. So what
fits depends on how busy the machine may be.
"""

from __future__ import annotations

from typing import Final

CALM: Final = {
    # A busy machine, 50 ready processes on two cores, holds up a loop or a request for tens of seconds. The price:
    # after all of Airflow was killed its tasks are found and run again within three minutes, not half of one.
    "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "150",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "600",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "30",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "3600",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "5",
    # So often in a row a task's heartbeat may fail before its supervisor ends it.
    "AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "30",
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",
    "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "10",
    "AIRFLOW__EXECUTION_API__JWT_EXPIRATION_TIME": "7200",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "150",
    "AIRFLOW__TRIGGERER__RUNNER_HEALTH_CHECK_THRESHOLD": "150",
    "AIRFLOW__DAG_PROCESSOR__HEALTH_CHECK_THRESHOLD": "150",
    "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "600",
    "AIRFLOW__DAG_PROCESSOR__STALE_DAG_THRESHOLD": "600",
    "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
    "AIRFLOW__CORE__TASK_SUCCESS_OVERTIME": "120",
    "AIRFLOW__API__WORKER_TIMEOUT": "600",
}
"""For people: nothing that still runs is taken for dead."""

QUICK: Final = CALM | {
    "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "20",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    # Several deployments share the machine, and each look at nothing costs.
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.6",
}
"""For tests that kill: what a crash has left is found within half a minute, on a machine that is not too busy."""
