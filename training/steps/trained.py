"""What a training is tracked by and leaves behind, whoever wrote its loop."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from mlops_provider.refs import CheckpointRef, FeaturesRef, canonical_json
from training.code import bundle, recipe_folder
from training.steps import StepContext
from training.tracking.connection import TrackingError
from training.tracking.run import TrackedRun
from training.tracking.system_metrics import SystemMetrics
from training.trainer.checkpoint.weights import serialise
from training.trainer.config import TrainConfig
from training.trainer.parallel import Gang
from training.trainer.tracked import track

FLUSH_SECONDS: Final = 1.0
"""For metrics after SIGTERM; SIGKILL may follow soon."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A training's result."""

    weights: dict[str, Any]
    """State dict of the model, whole and on the CPU."""
    history: Sequence[Mapping[str, Any]]
    epoch: int
    """That the weights are of."""
    metrics: Mapping[str, float]
    world_size: int


@contextmanager
def tracked_run(
    context: StepContext, config: TrainConfig, gang: Gang, num_parameters: int
) -> Iterator[TrackedRun | None]:
    """The MLflow run, with the state of this node, on one process of each node; None on the others."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        yield None
        return
    tracked = track(context.deployment, context.input, config, gang, num_parameters)
    try:
        with SystemMetrics(tracked.log, node=_node()):
            yield tracked
    except SystemExit:
        # Told to end. What MLflow does not take in time waits on disk, and the next try goes on in the same run.
        with suppress(TrackingError):
            tracked.flush(FLUSH_SECONDS)
        tracked.close()
        raise
    except Exception:
        tracked.abandon()
        raise


def publish(
    context: StepContext,
    config: TrainConfig,
    trained: Trained,
    tracked: TrackedRun,
    manifest: Mapping[str, Any],
    timeout: float,
) -> CheckpointRef:
    """
    Done by rank 0: all that evaluation needs, into the store and beside the MLflow run.

    :param manifest: of the features
    :param timeout: seconds for MLflow to come back
    """
    features = context.input.ref
    assert isinstance(features, FeaturesRef)
    description = {
        "model": config.model,
        "model_args": dict(config.model_args),
        "num_features": features.num_features,
        "vocab_size": manifest.get("vocab_size"),
        "objective": config.objective,
        "metric": config.metric,
        "loss": config.loss,
        "grouped": bool(manifest["grouped"]),
    }
    files = {
        "weights.pt": serialise(trained.weights),
        "code.zip": bundle(recipe_folder(context.deployment.home, config.model)),
        "model.json": canonical_json(description),
    }
    run_id = tracked.wait_until_open(timeout)
    tracked.log_bytes("model", files)
    files["history.json"] = canonical_json(list(trained.history))
    return CheckpointRef(
        place=context.place,
        artifacts={name.partition(".")[0]: context.publish(name, data) for name, data in files.items()},
        epoch=trained.epoch,
        metrics=trained.metrics,
        seed=config.seed,
        world_size=trained.world_size,
        tracking_run=run_id,
        parent=features,
    )


def _node() -> int | None:
    """None where there is only one."""
    return int(os.environ["GROUP_RANK"]) if os.environ.get("GROUP_WORLD_SIZE", "1") != "1" else None
