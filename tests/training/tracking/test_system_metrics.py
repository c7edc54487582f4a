from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest
from mlflow import MlflowClient
from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

from mlops.tracking.run import TrackedRun
from mlops.tracking.system_metrics import SystemMetrics, node_metrics

Attempt = Callable[..., TrackedRun]


def test_names_and_units_are_those_of_mlflow() -> None:
    """Broken: MLflow's page would not show them where people look, or in megabytes what is in bytes."""
    monitors = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    ours = node_metrics(psutil.net_io_counters())
    theirs: dict[str, float] = {}
    for monitor in monitors:
        monitor.collect_metrics()
        theirs |= monitor.aggregate_metrics()
    assert ours.keys() == theirs.keys()
    for name in ("system_memory_usage_megabytes", "disk_usage_megabytes", "disk_usage_percentage"):
        assert 0.5 < ours[name] / theirs[name] < 2


@pytest.mark.server
def test_each_node_has_metrics_of_its_own(client: MlflowClient, attempt: Attempt) -> None:
    """Broken: the slow node of a gang could not be told from the others."""
    run, other = attempt(), attempt(leads=False)
    with (
        SystemMetrics(run.log, node=0, every_seconds=1.1),
        SystemMetrics(other.log, node=1, every_seconds=1.1),
    ):
        time.sleep(2.5)
    other.finish()
    run.finish()
    for node in (0, 1):
        name = f"system/node_{node}/cpu_utilization_percentage"
        stored = client.get_metric_history(run.run_id, name)
        assert len({metric.timestamp for metric in stored}) == 3
        ages = [metric.step for metric in stored]
        assert ages == sorted(ages), "by the run's age"
        assert max(ages) < 3600
