"""What of a training goes to MLflow: its settings and where it came from, and its metrics while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import torch

from mlops.contract.metrics import short_name
from mlops.contract.progress import NUM_STEPS, TRAINING_SECONDS
from mlops.contract.sections.train import Train
from mlops.contract.settings import flat_settings
from mlops.contract.step import StepInput
from mlops.process import ProcessSettings
from mlops.tracking.connection import allowed, allowed_parameter
from mlops.tracking.provenance import REPRODUCTION_TAG, lineage_tags, run_tags
from mlops.tracking.run import Point, TrackedRun, open_run
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.flops import peak_flops
from mlops.trainer.parallel import Ranks
from mlops.trainer.progress import StepMetrics
from mlops.trainer.state import Epoch

_MOST_MOMENTS: Final = 1000
"""Most points of a curve, for each of its doublings in length: a training of days is not drawn second by second."""


def track(
    deployment: ProcessSettings,
    document: StepInput,
    config: Train,
    ranks: Ranks,
    num_parameters: int,
    num_steps: int | None,
    tags: Mapping[str, str],
) -> TrackedRun:
    """
    Track this training in the run that an earlier try opened, or a new one. Called by one process of each node.

    :param num_steps: optimizer steps of all epochs; None where they are not known
    :param tags: further ones
    """
    run, features = document.run, document.ref
    assert features is not None
    settings = {allowed_parameter(name): value for name, value in flat_settings(config.model_dump(mode="json")).items()}
    sizes = {"world_size": ranks.world_size, "num_parameters": num_parameters}
    if num_steps is not None:
        sizes[NUM_STEPS] = num_steps
    device = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else "none"
    return open_run(
        deployment.tracking_uri,
        experiment=run.owner,
        run_key=run.run_key,
        name=f"{run.pipeline} {run.interval_end[:10]}",
        params=settings | sizes,
        tags={
            **run_tags(run, deployment.home),
            **lineage_tags(features),
            "mlops.seed": str(config.seed),
            "mlops.place": document.place,
            "mlops.hardware.gpu": device,
            "mlops.torch": torch.__version__,
            **({REPRODUCTION_TAG: document.reproduces} if document.reproduces else {}),
            **tags,
        },
        leads=ranks.leads,
    )


class MlflowCurves:
    """
    Draws a training's curves in its run; rank 0.

    :param checkpoints: whose durations are told too
    """

    def __init__(self, tracked: TrackedRun, config: Train, ranks: Ranks, checkpoints: Checkpoints) -> None:
        self._tracked, self._config, self._checkpoints = tracked, config, checkpoints
        self._gpus = ranks.world_size if ranks.device.type == "cuda" else 0
        self._peak_flops = peak_flops(ranks.device)
        self._started = time.monotonic()
        self._next = 0.0

    def step_metrics(self, step_metrics: StepMetrics) -> None:
        """By optimizer step; about once a second at first, ever more seldom then."""
        elapsed = time.monotonic() - self._started
        if elapsed < self._next:
            return
        self._next = elapsed + elapsed / _MOST_MOMENTS
        self._tracked.check_login()
        metrics = {
            "loss": step_metrics.loss,
            "gradient_norm": step_metrics.gradient_norm,
            "learning_rate": step_metrics.learning_rate,
            "training_throughput_samples_per_sec": step_metrics.samples_per_second,
            "data_loading_latency_ms": step_metrics.data_latency_ms,
            TRAINING_SECONDS: step_metrics.training_seconds,
        }
        if self._checkpoints.last_durable_seconds:
            metrics["checkpoint_duration_ms"] = 1000 * self._checkpoints.last_durable_seconds
        if step_metrics.flops_per_second is not None:
            metrics["model_flops_per_sec"] = step_metrics.flops_per_second
            if self._peak_flops is not None:
                utilization = step_metrics.flops_per_second / (self._gpus * self._peak_flops)
                metrics["model_flop_utilization_pct"] = 100 * utilization
        if self._gpus:
            metrics["gpu_hours"] = self._gpus * step_metrics.training_seconds / 3600
        self._tracked.log(Point(step=step_metrics.step, unix_time=step_metrics.unix_time, metrics=metrics))

    def epoch(self, epoch: Epoch) -> None:
        """By epoch."""
        self._tracked.log(epoch_point(self._config, epoch))


def epoch_point(config: Train, epoch: Epoch) -> Point:
    """Return the values of an epoch as MLflow takes them."""
    metrics = {
        **epoch.losses,
        allowed(f"validation_{short_name(config.metric)}"): epoch.validation_metric,
        "epoch_seconds": epoch.seconds,
        **{allowed(f"validation_{name}"): value for name, value in epoch.further_metrics.items()},
    }
    return Point(step=epoch.epoch, unix_time=epoch.finished_at, metrics=metrics)
