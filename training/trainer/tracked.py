"""What of a training goes to MLflow: its settings and where it came from, and the metrics of each epoch."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

import torch

from mlops_provider.step import StepInput
from training.process import Deployment
from training.tracking.connection import allowed, connect
from training.tracking.provenance import lineage_tags, run_tags
from training.tracking.run import Point, TrackedRun, open_run
from training.trainer.config import TrainConfig
from training.trainer.loop import Epoch
from training.trainer.parallel import Gang

logger = logging.getLogger(__name__)


def track(
    deployment: Deployment, document: StepInput, config: TrainConfig, gang: Gang, model: torch.nn.Module
) -> TrackedRun:
    """Open the run of this training, or go on with the one that an earlier try opened."""
    run, features = document.run, document.ref
    assert features is not None
    params: dict[str, Any] = {name: value for name, value in asdict(config).items() if name != "model_args"}
    params |= {f"model_args.{name}": value for name, value in config.model_args.items()}
    params |= {"world_size": gang.world_size, "num_parameters": sum(p.numel() for p in model.parameters())}
    device = torch.cuda.get_device_name(gang.device) if gang.device.type == "cuda" else "none"
    tracked = open_run(
        connect(deployment.tracking_uri),
        experiment=run.pipeline,
        run_key=run.run_key,
        name=f"{run.pipeline} {run.interval_end[:10]}",
        params=params,
        tags={
            **run_tags(run, deployment.home),
            **lineage_tags(features),
            "mlops.seed": str(config.seed),
            "mlops.place": document.place,
            "mlops.hardware.gpu": device,
            "mlops.torch": torch.__version__,
        },
    )
    logger.info("MLflow run %s at %s", tracked.run_id, deployment.tracking_uri)
    return tracked


def point(record: Epoch, config: TrainConfig) -> Point:
    """The metrics of one epoch under the names they have in MLflow."""
    return Point(
        step=record.epoch,
        unix_time=record.finished_at,
        metrics={
            "train_loss": record.train_loss,
            allowed(f"validation_{config.metric}"): record.validation_metric,
            "training_throughput_samples_per_sec": record.samples_per_second,
            "epoch_seconds": record.seconds,
        },
    )
