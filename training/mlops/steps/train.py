"""Train: materialised features in, the best checkpoint out. Run by every process of the torchrun process group."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from mlops.contract.learners import TORCH
from mlops.contract.refs import CheckpointRef, StudyRef
from mlops.contract.section import check_section
from mlops.contract.sections.train import Train
from mlops.contract.settings import replaced_settings
from mlops.contract.step import BadDataError
from mlops.learners.preconditions import check_features
from mlops.steps import StepContext
from mlops.steps.publish import TRACKING_SECONDS, Origin, publish, tracked_run
from mlops.steps.train_given import take_given
from mlops.steps.train_learner import run_learner
from mlops.steps.train_script import run_program
from mlops.tracking.connection import check_address
from mlops.tracking.run import TrackedRun
from mlops.trainer.assembly import build_job
from mlops.trainer.checkpoint.resumption import kept_start
from mlops.trainer.determinism import watched
from mlops.trainer.health import REST, Heartbeat
from mlops.trainer.job import TrainingJob
from mlops.trainer.loop import ShouldPrune, Trainer
from mlops.trainer.parallel import Ranks, join, leave
from mlops.trainer.recipe import Recipe
from mlops.trainer.run_logging import MlflowCurves
from mlops.trainer.state import TrainingState
from mlops.trainer.trained import best_of
from mlops.trainer.warm_start import keep_weights


def run(context: StepContext) -> CheckpointRef | None:
    """Run the step; return on rank 0 the best checkpoint, None on the others."""
    study = context.input.ref
    tuned = study.parameters if isinstance(study, StudyRef) else {}
    config = check_section(Train, replaced_settings(context.config, tuned), "train")
    manifest = checked_manifest(context, config)
    if config.epochs == 0:
        return take_given(context, config, manifest)
    if config.learner != TORCH:
        return run_learner(context, config, manifest)
    if config.program is not None:
        return run_program(context, config, manifest)
    assert config.model is not None, "checked by the section"
    ranks = join_ranks(config)
    origin = _origin(context, config, ranks) if ranks.leads else None
    tags = origin.tags() if origin else {}
    if config.resume_from:
        tags["mlops.resumed_from"] = f"{config.resume_from.training}@{config.resume_from.step}"
    ref = None
    with train_model(context, config, ranks, manifest, tags=tags) as (job, state, tracked):
        best = best_of(job, state, place=context.place, rank=ranks.rank)
        if best and origin and tracked:
            if job.nondeterministic:
                origin = origin.noting(nondeterministic=sorted(job.nondeterministic))
            if config.resume_from:
                origin = replace(origin, start=kept_start(context.store, context.place, config.resume_from))
            ref = publish(context, config, best, origin, tracked, manifest)
    leave(ranks)
    return ref


def _origin(context: StepContext, config: Train, ranks: Ranks) -> Origin:
    assert config.model is not None, "of learner: torch"
    kept = keep_weights(config.initialise, context.store, context.deployment.home, context.place)
    return replace(Origin.of(context, config.model, ranks), initial_weights=kept)


def join_ranks(config: Train) -> Ranks:
    timeout = timedelta(seconds=config.collective_timeout_seconds)
    return join(config.parallel, timeout, deterministic=config.deterministic, float32_matmul=config.float32_matmul)


@contextmanager
def train_model(
    context: StepContext,
    config: Train,
    ranks: Ranks,
    manifest: Mapping[str, Any],
    *,
    should_prune: ShouldPrune | None = None,
    tags: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[TrainingJob, TrainingState, TrackedRun | None]]:
    """
    Train to the end; the run in MLflow ends with the context.

    :param manifest: manifest of the features
    :param should_prune: called on rank 0 after each epoch, True prunes the training; given on all ranks or on none
    :param tags: tags of the run
    """
    heartbeat = Heartbeat.from_environment()
    recipe = Recipe(
        config=config,
        ranks=ranks,
        home=context.deployment.home,
        store=context.store,
        features=context.features,
        manifest=manifest,
    )
    job, num_parameters = build_job(recipe, place=context.place, scratch=context.scratch, heartbeat=heartbeat)
    num_steps = config.epochs * job.loader.num_steps
    with tracked_run(context, config, ranks, num_parameters, tags, num_steps) as tracked:
        curves = MlflowCurves(tracked, config, ranks, job.checkpoints) if tracked and ranks.leads else None
        with watched(context.deployment.home) as operations:
            state = Trainer(job, ranks, curves, should_prune).train()
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
        ended = {"mlops.pruned": "True"} if state.pruned else {}
        if job.nondeterministic:
            ended["mlops.nondeterministic"] = ", ".join(sorted(job.nondeterministic))
        tracked.finish(TRACKING_SECONDS, "KILLED" if state.pruned else "FINISHED", ended)


def checked_manifest(context: StepContext, config: Train) -> dict[str, Any]:
    """Return the features' manifest, after checks of everything that can be known before anything costs time."""
    features = context.features
    manifest: dict[str, Any] = json.loads(context.store.read(features.artifacts["manifest"]))
    check_features(config, manifest, context.own)
    check_address(context.deployment.tracking_uri)
    for name in ("train", "validation"):
        if not manifest["splits"][name]["num_samples"]:
            raise BadDataError(f"the {name} split of {features.place} is empty; widen ingest.window or ingest.split")
    return manifest
