"""Train: materialised features in, the best checkpoint out. Run by every process of the torchrun gang."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from mlops_provider.refs import CheckpointRef, FeaturesRef, canonical_json
from mlops_provider.step import BadConfigError, BadDataError
from training.code import bundle, load_attribute, recipe_folder
from training.data.loader import Loader
from training.data.shards import open_source, open_split
from training.steps import StepContext
from training.tracking.connection import check_address
from training.tracking.run import TrackedRun
from training.tracking.system_metrics import SystemMetrics
from training.trainer.checkpoint.checkpoints import Checkpoints
from training.trainer.checkpoint.planning import CheckpointError
from training.trainer.checkpoint.weights import serialise
from training.trainer.config import TrainConfig, build_model
from training.trainer.health import REST, Heartbeat
from training.trainer.layouts import build_layout
from training.trainer.loop import Trainer, TrainingJob
from training.trainer.metrics import check_metric
from training.trainer.objectives import DEFAULT_LOSSES
from training.trainer.optimizer import build_optimizer
from training.trainer.parallel import Gang, join, leave, seed_everything
from training.trainer.state import TrainingState
from training.trainer.tracked import Curves, track
from training.trainer.validation import Validation

TRACKING_SECONDS: Final = 60.0
"""For MLflow to come back once the training is over. Its last checkpoint is durable: a retry only tells MLflow."""


def run(context: StepContext) -> CheckpointRef | None:
    """:return: on rank 0 the best checkpoint; None on the others"""
    config = TrainConfig.of(context.config)
    features = context.input.ref
    assert isinstance(features, FeaturesRef)
    manifest = json.loads(context.store.read(features.artifacts["manifest"]))
    _check(context, config, features, manifest)
    heartbeat = Heartbeat.from_environment()
    timeout = timedelta(seconds=config.collective_timeout_seconds)
    gang = join(config.parallel, timeout, deterministic=config.deterministic)
    job, num_parameters = _job(context, config, gang, heartbeat, grouped=bool(manifest["grouped"]))
    with ExitStack() as stack:
        tracked: TrackedRun | None = None
        if _first_of_node():
            tracked = track(context.deployment, context.input, config, gang, num_parameters)
            stack.enter_context(_abandoned_on_failure(tracked))
            stack.enter_context(SystemMetrics(tracked.log, node=_node()))
        curves = Curves(tracked, config, gang, job.checkpoints) if tracked and gang.leads else None
        state = Trainer(job, gang, curves).train()
        heartbeat.beat(state.step, REST)
        if curves is not None:
            # A killed process may have taken some with it; those that MLflow has are not sent again.
            for epoch in state.history:
                curves.epoch(epoch)
        ref = _publish(context, config, job, state, tracked, grouped=bool(manifest["grouped"]))
    if tracked is not None:
        tracked.finish(TRACKING_SECONDS)
    leave(gang)
    return ref


def _check(context: StepContext, config: TrainConfig, features: FeaturesRef, manifest: dict[str, Any]) -> None:
    """What can be known before anything costs time."""
    check_metric(config.metric, config.objective, grouped=bool(manifest["grouped"]))
    check_address(context.deployment.tracking_uri)
    for name in ("train", "validation"):
        if not manifest["splits"][name]["num_samples"]:
            raise BadDataError(
                f"the {name} split of {features.place} is empty; widen ingest.window_days or ingest.split"
            )


def _job(
    context: StepContext, config: TrainConfig, gang: Gang, heartbeat: Heartbeat, *, grouped: bool
) -> tuple[TrainingJob, int]:
    """:return: and the number of the model's parameters"""
    features, store = context.input.ref, context.store
    assert isinstance(features, FeaturesRef)
    logical_shards = config.logical_shards if config.exact else None
    seed_everything(config.seed)
    factory = load_attribute(config.model, context.deployment.home)
    model = build_model(factory, config.model, features.num_features, config.model_args)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    layout = build_layout(
        model,
        gang,
        precision=config.precision,
        activation_checkpointing=config.activation_checkpointing,
        compile=config.compile,
        logical_shards=logical_shards,
    )
    job = TrainingJob(
        config=config,
        layout=layout,
        optimizer=build_optimizer(config, layout.model, _function(context, config, "configure_optimizer")),
        loss=_function(context, config, "loss") or DEFAULT_LOSSES[config.objective],
        curriculum=_function(context, config, "curriculum"),
        loader=Loader(
            source=open_source(store, features, "train", context.scratch),
            global_batch=config.global_batch,
            seed=config.seed,
            rank=gang.data_rank,
            world_size=gang.data_world_size,
            micro_batch=config.micro_batch,
            logical_shards=logical_shards,
            pin=gang.device.type == "cuda",
        ),
        validation=Validation(
            table=open_split(store, features, "validation", context.scratch),
            grouped=grouped,
            metric=config.metric,
            further=_function(context, config, "metrics"),
        ),
        checkpoints=Checkpoints(
            store=store,
            place=context.place,
            gang_rank=gang.rank,
            world_size=gang.world_size,
            group=gang.cpu_group,
            keep_latest=config.checkpoint.keep_latest,
        ),
        heartbeat=heartbeat,
    )
    return job, num_parameters


def _publish(
    context: StepContext,
    config: TrainConfig,
    job: TrainingJob,
    state: TrainingState,
    tracked: TrackedRun | None,
    *,
    grouped: bool,
) -> CheckpointRef | None:
    """Called by all ranks, for all look whether the best checkpoint is whole; done by rank 0."""
    features, best, saved = context.input.ref, state.best, job.checkpoints.best()
    assert isinstance(features, FeaturesRef)
    assert best is not None, "epochs >= 1"
    if saved is None or saved.step != best.step:
        raise CheckpointError(
            f"the checkpoint of step {best.step}, the best, is damaged or gone; a retry goes on from the one before it"
        )
    if context.deployment.rank != 0:
        return None
    assert tracked is not None, "rank 0 is the first of its node"
    files = {
        "weights.pt": serialise(job.checkpoints.load_whole(saved, "model")["model"]),
        "code.zip": bundle(recipe_folder(context.deployment.home, config.model)),
        "model.json": canonical_json(
            {
                "model": config.model,
                "model_args": dict(config.model_args),
                "num_features": features.num_features,
                "objective": config.objective,
                "metric": config.metric,
                "loss": config.loss,
                "grouped": grouped,
            }
        ),
    }
    run_id = tracked.wait_until_open(TRACKING_SECONDS)
    tracked.log_bytes("model", files)
    history = canonical_json([asdict(epoch) for epoch in state.history])
    return CheckpointRef(
        place=context.place,
        artifacts={
            "weights": context.publish("weights.pt", files["weights.pt"]),
            "code": context.publish("code.zip", files["code.zip"]),
            "model": context.publish("model.json", files["model.json"]),
            "history": context.publish("history.json", history),
        },
        epoch=best.epoch,
        metrics={config.metric: best.validation_metric, "train_loss": best.train_loss},
        seed=config.seed,
        world_size=saved.world_size,
        tracking_run=run_id,
        parent=features,
    )


@contextmanager
def _abandoned_on_failure(tracked: TrackedRun) -> Iterator[None]:
    try:
        yield
    except SystemExit:
        tracked.close()  # told to end: the next try goes on in the same run
        raise
    except Exception:
        tracked.abandon()
        raise


def _function(context: StepContext, config: TrainConfig, setting: str) -> Any:
    """The recipe's function that a setting names; None where it names none."""
    if (import_path := getattr(config, setting)) is None:
        return None
    function = load_attribute(import_path, context.deployment.home)
    if not callable(function):
        raise BadConfigError(f"train.{setting}: {import_path} is a {type(function).__name__}, not a function")
    return function


def _first_of_node() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _node() -> int | None:
    """None where there is only one."""
    return int(os.environ["GROUP_RANK"]) if os.environ.get("GROUP_WORLD_SIZE", "1") != "1" else None
