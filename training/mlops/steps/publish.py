"""The tracking and the results of a training, whoever wrote its loop."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch

from mlops.checkout import MAX_PATCH_BYTES, uncommitted
from mlops.code import bundle, recipe_folder
from mlops.contract.refs import Artifact, CheckpointRef, FeaturesRef, StudyRef, canonical_json
from mlops.contract.sections.train import Train
from mlops.metrics.metric import load_metric
from mlops.objectives.objective import load_objective
from mlops.predictor.document import weights_file
from mlops.steps import StepContext
from mlops.tracking.connection import TrackingError
from mlops.tracking.run import TrackedRun
from mlops.tracking.system_metrics import SystemMetrics
from mlops.trainer.environment import NUM_THREADS, gang_environment
from mlops.trainer.parallel import Ranks
from mlops.trainer.past_environments import note_environment, other_environments
from mlops.trainer.run_logging import track
from mlops.trainer.trained import Trained

TRACKING_SECONDS: Final = 30.0
"""
Seconds to wait for MLflow to come back after the training is over. Then the task waits instead, which holds no machine.
The last checkpoint is durable: a process that starts again only reports to MLflow.
"""
FLUSH_SECONDS: Final = 1.0
"""Seconds to send metrics to MLflow after SIGTERM; short, because SIGKILL may follow soon."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Environment and code of a training, as they were when it began: by its end the checkout may hold other code."""

    environment: Mapping[str, Any]
    code: bytes
    """Code of the recipe as a zip, see :func:`mlops.code.bundle`."""
    patch: bytes
    """Patch from the commit to the code as it is; empty if there is nothing to patch, or too much."""
    initial_weights: Artifact | None = None
    """The kept file of weights that it started from."""
    start: Artifact | None = None
    """The marker of the kept checkpoint that it went on from."""

    @classmethod
    def of(cls, context: StepContext, recipe: str, ranks: Ranks) -> Origin:
        """:param recipe: import path of something in the recipe's folder"""
        home = context.deployment.home
        changes = uncommitted(home)
        if changes.patch is None:
            logger.warning(
                "%d files of code are not committed, more than %d MB: no patch is kept of them. Commit them, or what "
                "they change outside of the recipe cannot be reproduced",
                *(len(changes.files), MAX_PATCH_BYTES >> 20),
            )
        found = gang_environment(home, ranks, int(os.environ.get("GROUP_WORLD_SIZE", "1")))
        note_environment(context.store, context.place, found)
        return cls(
            environment={**found, "changed_files": list(changes.files)},
            code=bundle(recipe_folder(home, recipe)),
            patch=changes.patch or b"",
        )

    def noting(self, **facts: Any) -> Origin:
        """Return a copy with facts that are known only after the training."""
        return dataclasses.replace(self, environment={**self.environment, **facts})

    def tags(self) -> dict[str, str]:
        return {"mlops.patch": hashlib.sha256(self.patch).hexdigest()} if self.patch else {}

    def files(self) -> dict[str, bytes]:
        files = {"environment.json": canonical_json(dict(self.environment))}
        return files | ({"patch.diff": self.patch} if self.patch else {})


@contextmanager
def tracked_run(
    context: StepContext,
    config: Train,
    ranks: Ranks,
    num_parameters: int,
    tags: Mapping[str, str] = MappingProxyType({}),
    num_steps: int | None = None,
) -> Iterator[TrackedRun | None]:
    """
    Track an MLflow run, with the state of this node, in one process of each node; None in the others.

    :param num_steps: optimizer steps of all epochs; None where they are not known
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":
        yield None
        return
    tracked = track(context.deployment, context.input, config, ranks, num_parameters, num_steps, tags)
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
    config: Train,
    trained: Trained,
    origin: Origin,
    tracked: TrackedRun,
    manifest: Mapping[str, Any],
) -> CheckpointRef:
    """
    Done by rank 0: all that evaluation needs, into the store. MLflow gets the model when it is registered.

    :param manifest: of the features
    """
    parent, features = context.input.ref, context.features
    assert isinstance(parent, FeaturesRef | StudyRef)
    objective = load_objective(config.objective, config.objective_settings, context.own)
    metric = load_metric(config.metric, context.own)
    description = {
        "learner": config.learner,
        "learner_settings": dict(config.learner_settings),
        "model": config.model,
        "model_args": dict(config.model_args),
        "num_features": features.num_features,
        "vocab_size": manifest.get("vocab_size"),
        "num_outputs": objective.functions.num_outputs,
        "objective": config.objective,
        "objective_settings": objective.settings.model_dump(mode="json"),
        "columns": dict(objective.functions.columns),
        "metric": metric.name,
        "metric_title": metric.title,
        "loss": config.loss,
        "grouped": bool(manifest["grouped"]),
    }
    files = {
        weights_file(config.learner): trained.weights,
        "code.zip": origin.code,
        "model.json": canonical_json(description),
    }
    run_id = tracked.wait_until_open(TRACKING_SECONDS)
    # Where it went on from a checkpoint, they are that one's.
    origin = origin.noting(**{NUM_THREADS: torch.get_num_threads()})
    if others := other_environments(context.store, context.place, origin.environment):
        origin = origin.noting(other_environments=others)
    files |= {"history.json": canonical_json(list(trained.history)), **origin.files()}
    if trained.trail is not None:
        files["trail.json"] = canonical_json(dict(trained.trail))
    if trained.lost_best is not None:
        files["lost_best.json"] = canonical_json(dict(trained.lost_best))
    artifacts = {name.partition(".")[0]: context.publish(name, data) for name, data in files.items()}
    if origin.initial_weights is not None:
        artifacts["initial_weights"] = origin.initial_weights
    if origin.start is not None:
        artifacts["start"] = origin.start
    return CheckpointRef(
        place=context.place,
        artifacts=artifacts,
        epoch=trained.epoch,
        metrics=trained.metrics,
        seed=config.seed,
        world_size=trained.world_size,
        tracking_run=run_id,
        parent=parent,
    )


def _node() -> int | None:
    """Return the rank of this node; None if there is only one."""
    return int(os.environ["GROUP_RANK"]) if os.environ.get("GROUP_WORLD_SIZE", "1") != "1" else None
