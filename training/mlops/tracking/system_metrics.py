"""Metrics of a node's processors, memory, disk, network and GPUs while it trains."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import psutil

from mlops.tracking.journal import Point
from mlops.tracking.opening import SYSTEM_PREFIX

EVERY_SECONDS: Final = 30.0
GPU_UTILIZATION: Final = "gpu_utilization_pct"
_MEGABYTE: Final = 1e6

logger = logging.getLogger(__name__)


class SystemMetrics:
    """
    Logs the state of this node from a thread. One per node, for it measures the whole machine.

    Names and units are those of MLflow's own system metrics, which its page shows in a tab of their own; the mean over
    the node's GPUs is ``gpu_utilization_pct`` as well, without prefix that of the first node. Use it as a context
    manager.

    :param log: :meth:`~mlops.tracking.run.TrackedRun.log`
    :param node: rank of the node if there are several, None if there is one
    """

    def __init__(self, log: Callable[[Point], None], *, node: int | None, every_seconds: float = EVERY_SECONDS) -> None:
        self._log = log
        self._prefix = SYSTEM_PREFIX if node is None else f"{SYSTEM_PREFIX}node_{node}/"
        self._gpu_utilization = f"{self._prefix}{GPU_UTILIZATION}" if node else GPU_UTILIZATION
        self._every_seconds = every_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        nvml = _nvml()
        network_before = psutil.net_io_counters()
        psutil.cpu_percent()  # the first call only notes from when on
        while not self._stop.wait(self._every_seconds):
            self._log_once(nvml, network_before)
        self._log_once(nvml, network_before)  # a short training has one, too

    def _log_once(self, nvml: Any, network_before: Any) -> None:
        gpus = {} if nvml is None else gpu_metrics(nvml)
        measured = node_metrics(network_before) | gpus
        metrics = {f"{self._prefix}{name}": value for name, value in measured.items()}
        utilization = [value for name, value in gpus.items() if name.endswith("_utilization_percentage")]
        if utilization:
            metrics[self._gpu_utilization] = sum(utilization) / len(utilization)
        self._log(Point(step=None, unix_time=time.time(), metrics=metrics))


def node_metrics(network_before: Any) -> dict[str, float]:
    """Return the state of processors, memory and disk; and the network traffic since the given counters."""
    memory, disk, network = psutil.virtual_memory(), psutil.disk_usage(os.sep), psutil.net_io_counters()
    return {
        "cpu_utilization_percentage": psutil.cpu_percent(),
        "system_memory_usage_megabytes": memory.used / _MEGABYTE,
        "system_memory_usage_percentage": memory.used / memory.total * 100,
        "disk_usage_percentage": disk.percent,
        "disk_usage_megabytes": disk.used / _MEGABYTE,
        "disk_available_megabytes": disk.free / _MEGABYTE,
        "network_receive_megabytes": (network.bytes_recv - network_before.bytes_recv) / _MEGABYTE,
        "network_transmit_megabytes": (network.bytes_sent - network_before.bytes_sent) / _MEGABYTE,
    }


def gpu_metrics(nvml: Any) -> dict[str, float]:
    """Return each GPU's memory, utilisation and power, as far as its driver reports them."""
    metrics: dict[str, float] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        for read in (_gpu_memory, _gpu_utilization, _gpu_power):
            try:
                values = read(nvml, handle)
            except nvml.NVMLError as error:  # parts of a GPU (MIG) tell neither utilization nor power
                logger.debug("GPU %d: %s: %s", index, read.__name__, error)
                continue
            metrics |= {f"gpu_{index}_{name}": float(value) for name, value in values.items()}
    return metrics


def _gpu_memory(nvml: Any, handle: Any) -> Mapping[str, float]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {
        "memory_usage_megabytes": memory.used / _MEGABYTE,
        "memory_usage_percentage": memory.used / memory.total * 100,
    }


def _gpu_utilization(nvml: Any, handle: Any) -> Mapping[str, float]:
    return {"utilization_percentage": nvml.nvmlDeviceGetUtilizationRates(handle).gpu}


def _gpu_power(nvml: Any, handle: Any) -> Mapping[str, float]:
    watts = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
    limit = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
    return {"power_usage_watts": watts, "power_usage_percentage": watts / limit * 100}


def _nvml() -> Any:
    """Return NVIDIA's library if it is installed and there is a driver; else None."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        logger.debug("no GPU metrics: %s", error)  # most machines have none
        return None
    return nvml
