"""Train: materialised features in, the best checkpoint out. Run by every process of the torchrun gang."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import cast

from mlops_provider.refs import CheckpointRef, FeaturesRef, canonical_json
from mlops_provider.step import BadConfigError, BadDataError
from training.code import bundle, load_attribute, recipe_folder
from training.data.feature_table import FeatureTable
from training.data.loader import Loader
from training.data.shards import open_split
from training.steps import StepContext
from training.tracking.connection import check_reachable
from training.trainer.checkpoint import Checkpoints
from training.trainer.config import Loss, TrainConfig, build_model
from training.trainer.loop import TrainingJob, fit
from training.trainer.metrics import check_metric
from training.trainer.objectives import DEFAULT_LOSSES
from training.trainer.parallel import join, leave, seed_everything
from training.trainer.tracked import point, track

logger = logging.getLogger(__name__)


def run(context: StepContext) -> CheckpointRef | None:
    """:return: on rank 0 the best checkpoint; None on the others"""
    config = TrainConfig(**context.config)
    features = context.input.ref
    assert isinstance(features, FeaturesRef)
    manifest = json.loads(context.store.read(features.artifacts["manifest"]))
    grouped = bool(manifest["grouped"])
    check_metric(config.metric, config.objective, grouped=grouped)
    if context.deployment.rank == 0:
        check_reachable(context.deployment.tracking_uri)

    train, validation = (_open(context, features, name) for name in ("train", "validation"))
    seed_everything(config.seed)
    factory = load_attribute(config.model, context.deployment.home)
    model = build_model(factory, config.model, train.num_features, config.model_args)
    loss = _loss(config, context)
    gang = join()
    tracked = track(context.deployment, context.input, config, gang, model) if gang.leads else None
    job = TrainingJob(
        config=config,
        model=model,
        loss=loss,
        loader=Loader(
            table=train,
            grouped=grouped,
            global_batch=config.global_batch,
            seed=config.seed,
            rank=gang.rank,
            world_size=gang.world_size,
        ),
        validation=validation,
        checkpoints=Checkpoints(store=context.store, place=context.place),
        on_epoch=lambda record: tracked.log(point(record, config)) if tracked else None,
    )
    try:
        history, best = fit(job, gang)
    except Exception:
        if tracked is not None:
            tracked.abandon()
        raise
    leave(gang)
    if tracked is None:
        return None

    code = bundle(recipe_folder(context.deployment.home, config.model))
    description = canonical_json(
        {
            "model": config.model,
            "model_args": dict(config.model_args),
            "num_features": train.num_features,
            "objective": config.objective,
            "metric": config.metric,
            "loss": config.loss,
            "grouped": grouped,
        }
    )
    # Metrics of epochs before a resume may have been lost with the killed process; twice is as good as once.
    for record in history:
        tracked.log(point(record, config))
    weights = context.store.read(best.weights)
    tracked.log_bytes("model", {"weights.pt": weights, "code.zip": code, "model.json": description})
    tracked.finish()
    return CheckpointRef(
        place=context.place,
        artifacts={
            "weights": best.weights,
            "code": context.publish("code.zip", code),
            "model": context.publish("model.json", description),
            "history": context.publish("history.json", canonical_json([asdict(record) for record in history])),
        },
        epoch=best.epoch,
        metrics={config.metric: best.metric, "train_loss": history[best.epoch - 1].train_loss},
        seed=config.seed,
        world_size=gang.world_size,
        tracking_run=tracked.run_id,
        parent=features,
    )


def _open(context: StepContext, features: FeaturesRef, name: str) -> FeatureTable:
    table = open_split(context.store, features, name, context.scratch)
    if table.num_samples == 0:
        raise BadDataError(f"the {name} split of {features.place} is empty; widen ingest.window_days or ingest.split")
    return table


def _loss(config: TrainConfig, context: StepContext) -> Loss:
    if config.loss is None:
        return DEFAULT_LOSSES[config.objective]
    loss = load_attribute(config.loss, context.deployment.home)
    if not callable(loss):
        raise BadConfigError(f"train.loss: {config.loss} is a {type(loss).__name__}, not a function")
    return cast(Loss, loss)
