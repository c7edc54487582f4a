"""Train: materialised features in, the best checkpoint out. Run by every process of the torchrun gang."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from mlops.contract.refs import CheckpointRef, StudyRef
from mlops.contract.sections.base import check_section
from mlops.contract.sections.train import Train
from mlops.contract.step import BadConfigError, BadDataError, replaced_settings
from mlops.data.shards.shard_cache import node_folder
from mlops.data.shards.shard_reading import open_source, open_split
from mlops.steps import StepContext
from mlops.steps.publish import Origin, Trained, publish, tracked_run
from mlops.tracking.connection import check_address
from mlops.tracking.run import TrackedRun
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.checkpoint.listing import read_listing
from mlops.trainer.checkpoint.planning import CheckpointError
from mlops.trainer.determinism import watched
from mlops.trainer.health import REST, Heartbeat
from mlops.trainer.loop import GivesUp, Trainer, TrainingJob
from mlops.trainer.memory.peer_memory import PeerMemory
from mlops.trainer.metrics import check_metric
from mlops.trainer.parallel import Ranks, join, leave, own_device, seed_everything
from mlops.trainer.recipe import Recipe
from mlops.trainer.run_logging import MlflowCurves
from mlops.trainer.script import ProgramOutput, run_script
from mlops.trainer.state import TrainingState
from mlops.trainer.validation import Validation

logger = logging.getLogger(__name__)

TRACKING_SECONDS: Final = 30.0
"""For MLflow to come back once the training is over. Then the task waits instead, which holds no machine. The last
checkpoint is durable: a process that starts again only tells MLflow."""


def run(context: StepContext) -> CheckpointRef | None:
    """:return: on rank 0 the best checkpoint; None on the others"""
    study = context.input.ref
    tuned = study.parameters if isinstance(study, StudyRef) else {}
    config = check_section(Train, replaced_settings(context.config, tuned), "train")
    manifest = checked_manifest(context, config)
    if config.program is not None:
        return _run_program(context, config, manifest)
    ranks = join_gang(config)
    origin = Origin.of(context.deployment.home, config, ranks) if ranks.leads else None
    tags = origin.tags() if origin else {}
    ref = None
    with train_model(context, config, ranks, manifest, tags=tags) as (job, state, tracked):
        best = _best(context, config, job, state)
        if best and origin and tracked:
            if job.nondeterministic:
                origin = origin.noting(nondeterministic=sorted(job.nondeterministic))
            ref = publish(context, config, best, origin, tracked, manifest, TRACKING_SECONDS)
    leave(ranks)
    return ref


def join_gang(config: Train) -> Ranks:
    timeout = timedelta(seconds=config.collective_timeout_seconds)
    return join(config.parallel, timeout, deterministic=config.deterministic, float32_matmul=config.float32_matmul)


@contextmanager
def train_model(
    context: StepContext,
    config: Train,
    ranks: Ranks,
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
    job, num_parameters = _job(context, config, ranks, heartbeat, manifest)
    with tracked_run(context, config, ranks, num_parameters, tags) as tracked:
        curves = MlflowCurves(tracked, config, ranks, job.checkpoints) if tracked and ranks.leads else None
        with watched(context.deployment.home) as operations:
            state = Trainer(job, ranks, curves, gives_up).train()
        heartbeat.beat(state.step, REST)
        if config.deterministic == "warn":
            # Stages of a pipeline do not do the same.
            job.nondeterministic.update(*ranks.gather_objects(operations) or ())
        if curves is not None:
            # A killed process may have taken some with it; those that MLflow has are not sent again.
            for epoch in state.history:
                curves.epoch(epoch)
        yield job, state, tracked
    if tracked is not None:
        ended = {"mlops.given_up": "True"} if state.given_up else {}
        if job.nondeterministic:
            ended["mlops.nondeterministic"] = ", ".join(sorted(job.nondeterministic))
        tracked.finish(TRACKING_SECONDS, "KILLED" if state.given_up else "FINISHED", ended)


def _run_program(context: StepContext, config: Train, manifest: Mapping[str, Any]) -> CheckpointRef | None:
    features, deployment = context.features, context.deployment
    assert config.program is not None
    # The process group is the script's.
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    ranks = Ranks(rank=deployment.rank, world_size=world_size, device=own_device())
    recipe = Recipe(
        config=config, ranks=ranks, home=deployment.home, store=context.store, features=features, manifest=manifest
    )
    model = recipe.model()
    seed_everything(config.seed)
    origin = Origin.of(deployment.home, config, ranks) if ranks.leads else None
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    ref = None
    with tracked_run(context, config, ranks, num_parameters, origin.tags() if origin else {}) as tracked:
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
                world_size=ranks.world_size,
            )
            ref = publish(context, config, best, origin, tracked, manifest, TRACKING_SECONDS)
    if tracked is not None:
        tracked.finish(TRACKING_SECONDS)
    return ref


def checked_manifest(context: StepContext, config: Train) -> dict[str, Any]:
    """The features' manifest, after a look at what can be known before anything costs time."""
    features = context.features
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
    context: StepContext, config: Train, ranks: Ranks, heartbeat: Heartbeat, manifest: Mapping[str, Any]
) -> tuple[TrainingJob, int]:
    """:return: and the number of the model's parameters"""
    features, store = context.features, context.store
    recipe = Recipe(
        config=config, ranks=ranks, home=context.deployment.home, store=store, features=features, manifest=manifest
    )
    loader = recipe.loader()
    test = recipe.self_test(loader)
    # A training that goes on was tested when it began.
    if test.due and not ranks.from_leader(ranks.leads and bool(read_listing(store, context.place).complete)):
        heartbeat.beat(0, REST)
        with watched(context.deployment.home):
            test.run()
    model = recipe.model()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    strategy, optimizer = recipe.parallelise(model)
    job = TrainingJob(
        config=config,
        strategy=strategy,
        optimizer=optimizer,
        loss=recipe.loss,
        curriculum=recipe.curriculum,
        loader=loader,
        validation=_validation(recipe, context.scratch),
        checkpoints=Checkpoints(
            store=store,
            place=context.place,
            ranks=ranks,
            keep_latest=config.checkpoint.keep_latest,
            timeout=timedelta(seconds=config.collective_timeout_seconds),
        ),
        heartbeat=heartbeat,
        memory=PeerMemory.of(
            ranks,
            peers=config.checkpoint.peers,
            place=context.place,
            seconds=config.collective_timeout_seconds,
        ),
    )
    return job, num_parameters


def _validation(recipe: Recipe, scratch: Path) -> Validation:
    config, features, store = recipe.config, recipe.features, recipe.store
    metric, further = config.metric, recipe.function("metrics")
    if config.objective == "language_model":
        source = open_source(store, features, "validation", node_folder())
        return Validation.of_tokens(source, context=features.num_features, metric=metric, further=further)
    table = open_split(store, features, "validation", scratch)
    return Validation.of_table(table, grouped=bool(recipe.manifest["grouped"]), metric=metric, further=further)


def _best(context: StepContext, config: Train, job: TrainingJob, state: TrainingState) -> Trained | None:
    """On rank 0. Called by all ranks, for all look whether the best checkpoint is whole."""
    saved = job.checkpoints.choose_weights([epoch.step for epoch in state.ranking])
    if saved is None:
        raise CheckpointError(
            f"no weights of the {len(state.history)} epochs are whole in {context.place}/checkpoints, not even of the "
            "last one; a retry goes on from the newest checkpoint that is"
        )
    if context.deployment.rank != 0:
        return None
    best = next(epoch for epoch in state.history if epoch.step == saved.step)
    lost = None if best is state.best else state.best
    if lost is not None:
        logger.warning(
            "the weights of epoch %d, the best with %s %.4f, are lost in both copies: publishing epoch %d, with %.4f",
            *(lost.epoch, config.metric, lost.validation_metric, best.epoch, best.validation_metric),
        )
    return Trained(
        weights=job.checkpoints.load_whole(saved, "model")["model"],
        history=[asdict(epoch) for epoch in state.history],
        epoch=best.epoch,
        metrics={config.metric: best.validation_metric, "train_loss": best.train_loss},
        world_size=saved.world_size,
        trail=state.trail.document(),
        lost_best=None if lost is None else asdict(lost),
    )
