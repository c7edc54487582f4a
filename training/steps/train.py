"""Train: materialised features in, the best checkpoint out. Run by every process of the torchrun gang."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

import torch

from mlops_provider.refs import CheckpointRef, FeaturesRef, StudyRef
from mlops_provider.step import BadConfigError, BadDataError, replaced_settings
from training.code import load_attribute
from training.data.loader import Loader
from training.data.shard_cache import node_folder
from training.data.shards import open_source, open_split
from training.steps import StepContext
from training.steps.trained import Origin, Trained, features_of, publish, tracked_run
from training.tracking.connection import check_address
from training.tracking.run import TrackedRun
from training.trainer.checkpoint.checkpoints import Checkpoints
from training.trainer.checkpoint.planning import CheckpointError
from training.trainer.config import TrainConfig, build_model
from training.trainer.health import REST, Heartbeat
from training.trainer.layouts import build_layout
from training.trainer.loop import GivesUp, Trainer, TrainingJob
from training.trainer.metrics import check_metric
from training.trainer.objectives import DEFAULT_LOSSES
from training.trainer.optimizer import build_optimizer
from training.trainer.parallel import Gang, join, leave, seed_everything
from training.trainer.program import ProgramOutput, run_script
from training.trainer.state import TrainingState
from training.trainer.tracked import Curves
from training.trainer.validation import Validation

TRACKING_SECONDS: Final = 60.0
"""For MLflow to come back once the training is over. Its last checkpoint is durable: a retry only tells MLflow."""


def run(context: StepContext) -> CheckpointRef | None:
    """:return: on rank 0 the best checkpoint; None on the others"""
    study = context.input.ref
    tuned = study.parameters if isinstance(study, StudyRef) else {}
    config = TrainConfig.of(replaced_settings(context.config, tuned))
    manifest = checked_manifest(context, config)
    if config.program is not None:
        return _run_program(context, config, manifest)
    gang = join_gang(config)
    origin = Origin.of(context.deployment.home, config, gang) if gang.leads else None
    tags = origin.tags() if origin else {}
    ref = None
    with train_model(context, config, gang, manifest, tags=tags) as (job, state, tracked):
        best = _best(context, config, job, state)
        if best and origin and tracked:
            ref = publish(context, config, best, origin, tracked, manifest, TRACKING_SECONDS)
    leave(gang)
    return ref


def join_gang(config: TrainConfig) -> Gang:
    timeout = timedelta(seconds=config.collective_timeout_seconds)
    return join(config.parallel, timeout, deterministic=config.deterministic)


@contextmanager
def train_model(
    context: StepContext,
    config: TrainConfig,
    gang: Gang,
    manifest: Mapping[str, Any],
    *,
    gives_up: GivesUp | None = None,
    tags: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[TrainingJob, TrainingState, TrackedRun | None]]:
    """
    Train to the end; the run in MLflow ends with the context.

    :param manifest: of the features
    :param gives_up: asked on rank 0 after each epoch; given on all ranks or on none
    :param tags: of the run
    """
    heartbeat = Heartbeat.from_environment()
    job, num_parameters = _job(context, config, gang, heartbeat, manifest)
    with tracked_run(context, config, gang, num_parameters, tags) as tracked:
        curves = Curves(tracked, config, gang, job.checkpoints) if tracked and gang.leads else None
        state = Trainer(job, gang, curves, gives_up).train()
        heartbeat.beat(state.step, REST)
        if curves is not None:
            # A killed process may have taken some with it; those that MLflow has are not sent again.
            for epoch in state.history:
                curves.epoch(epoch)
        yield job, state, tracked
    if tracked is not None:
        ended = {"mlops.given_up": "True"} if state.given_up else {}
        tracked.finish(TRACKING_SECONDS, "KILLED" if state.given_up else "FINISHED", ended)


def _run_program(context: StepContext, config: TrainConfig, manifest: Mapping[str, Any]) -> CheckpointRef | None:
    features, deployment = features_of(context), context.deployment
    assert config.program is not None
    # The process group is the script's.
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else "cpu"
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    gang = Gang(rank=deployment.rank, world_size=world_size, device=torch.device(device))
    factory = load_attribute(config.model, deployment.home)
    vocab_size = manifest.get("vocab_size")
    model = build_model(factory, config.model, features.num_features, config.model_args, vocab_size)
    seed_everything(config.seed)
    origin = Origin.of(deployment.home, config, gang) if gang.leads else None
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    ref = None
    with tracked_run(context, config, gang, num_parameters, origin.tags() if origin else {}) as tracked:
        output = run_script(
            deployment.home,
            config.program,
            context.input.dump(),
            checkpoints=f"{context.store.uri}/{context.place}/checkpoints",
            scratch=context.scratch,
        )
        if origin is not None and tracked is not None:
            left = ProgramOutput.read(output, program=config.program, metric=config.metric, model=model)
            tracked.log(left.point())
            best = Trained(
                weights=left.weights,
                history=[{"epoch": left.epoch, "validation_metric": left.metrics[config.metric], **left.metrics}],
                epoch=left.epoch,
                metrics=left.metrics,
                world_size=gang.world_size,
            )
            ref = publish(context, config, best, origin, tracked, manifest, TRACKING_SECONDS)
    if tracked is not None:
        tracked.finish(TRACKING_SECONDS)
    return ref


def checked_manifest(context: StepContext, config: TrainConfig) -> dict[str, Any]:
    """The features' manifest, after a look at what can be known before anything costs time."""
    features = features_of(context)
    manifest: dict[str, Any] = json.loads(context.store.read(features.artifacts["manifest"]))
    check_metric(config.metric, config.objective, grouped=bool(manifest["grouped"]))
    if (config.objective == "language_model") != ("vocab_size" in manifest):
        made = "tokens" if "vocab_size" in manifest else "rows"
        raise BadConfigError(
            f"objective {config.objective!r} does not fit the features, which are {made}: a language model needs a "
            "TokenSet, any other a FeatureSet"
        )
    check_address(context.deployment.tracking_uri)
    for name in ("train", "validation"):
        if not manifest["splits"][name]["num_samples"]:
            raise BadDataError(
                f"the {name} split of {features.place} is empty; widen ingest.window_days or ingest.split"
            )
    return manifest


def _job(
    context: StepContext, config: TrainConfig, gang: Gang, heartbeat: Heartbeat, manifest: Mapping[str, Any]
) -> tuple[TrainingJob, int]:
    """:return: and the number of the model's parameters"""
    features, store = features_of(context), context.store
    logical_shards = config.logical_shards if config.exact else None
    seed_everything(config.seed)
    factory = load_attribute(config.model, context.deployment.home)
    model = build_model(factory, config.model, features.num_features, config.model_args, manifest.get("vocab_size"))
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
            source=open_source(store, features, "train", node_folder()),
            global_batch=config.global_batch,
            seed=config.seed,
            rank=gang.data_rank,
            world_size=gang.data_world_size,
            micro_batch=config.micro_batch,
            logical_shards=logical_shards,
            pin=gang.device.type == "cuda",
        ),
        validation=_validation(context, config, features, manifest),
        checkpoints=Checkpoints(
            store=store,
            place=context.place,
            gang=gang,
            keep_latest=config.checkpoint.keep_latest,
            timeout=timedelta(seconds=config.collective_timeout_seconds),
        ),
        heartbeat=heartbeat,
    )
    return job, num_parameters


def _validation(
    context: StepContext, config: TrainConfig, features: FeaturesRef, manifest: Mapping[str, Any]
) -> Validation:
    metric, further = config.metric, _function(context, config, "metrics")
    if config.objective == "language_model":
        source = open_source(context.store, features, "validation", node_folder())
        return Validation.of_tokens(source, context=features.num_features, metric=metric, further=further)
    table = open_split(context.store, features, "validation", context.scratch)
    return Validation.of_table(table, grouped=bool(manifest["grouped"]), metric=metric, further=further)


def _best(context: StepContext, config: TrainConfig, job: TrainingJob, state: TrainingState) -> Trained | None:
    """On rank 0. Called by all ranks, for all look whether the best checkpoint is whole."""
    best, saved = state.best, job.checkpoints.best()
    assert best is not None, "epochs >= 1"
    if saved is None or saved.step != best.step:
        raise CheckpointError(
            f"the checkpoint of step {best.step}, the best, is damaged or gone; a retry goes on from the one before it"
        )
    if context.deployment.rank != 0:
        return None
    return Trained(
        weights=job.checkpoints.load_whole(saved, "model")["model"],
        history=[asdict(epoch) for epoch in state.history],
        epoch=best.epoch,
        metrics={config.metric: best.validation_metric, "train_loss": best.train_loss},
        world_size=saved.world_size,
        trail=state.trail.document(),
    )


def _function(context: StepContext, config: TrainConfig, setting: str) -> Any:
    """The recipe's function that a setting names; None where it names none."""
    if (import_path := getattr(config, setting)) is None:
        return None
    function = load_attribute(import_path, context.deployment.home)
    if not callable(function):
        raise BadConfigError(f"train.{setting}: {import_path} is a {type(function).__name__}, not a function")
    return function
