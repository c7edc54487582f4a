"""Trial: train once with settings that a study chooses. Run by every process of the torchrun process group."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from optuna.trial import FrozenTrial, TrialState

from mlops.contract.learners import TORCH
from mlops.contract.metrics import short_name
from mlops.contract.refs import TrialRef, canonical_json
from mlops.contract.section import check_section
from mlops.contract.sections.steps import TrialStep
from mlops.contract.sections.train import Train
from mlops.contract.settings import replaced_settings, settings_text
from mlops.contract.step import BadConfigError
from mlops.steps import StepContext
from mlops.steps.publish import TRACKING_SECONDS
from mlops.steps.train import checked_manifest, join_ranks, train_model
from mlops.steps.train_learner import learn
from mlops.steps.train_script import follow_program, seat
from mlops.trainer.parallel import Ranks, from_leader_alone, leave
from mlops.trainer.state import TrainingState
from mlops.tuning.study import RUN, Study
from mlops.tuning.study_logging import STATES, trial_tags

SECONDS_PER_HOUR: Final = 3600
PARAMETERS: Final = "parameters.json"
"""Settings of a trial, at its place: what half of it was trained with goes on with nothing else."""

logger = logging.getLogger(__name__)


def run(context: StepContext) -> TrialRef | None:
    """Run the step; return on rank 0 the result of the trial, None on the others."""
    config = context.section(TrialStep)
    number = config.number
    manifest = checked_manifest(context, config.train)
    program = config.train.program is not None
    alone = seat() if program else Ranks()
    ranks = join_ranks(config.train) if config.train.learner == TORCH and not program else alone
    study = Study.open(context.input, context.store.uri, config, context.own) if ranks.leads else None
    begun = _begin(study, number, context) if study else None
    timeout = timedelta(seconds=config.train.collective_timeout_seconds)
    trial = from_leader_alone(begun, timeout) if program else ranks.from_leader(begun)
    assert trial is not None, "rank 0 has it"
    if trial.state is TrialState.RUNNING:
        trial = _train(context, config, ranks, study, trial, manifest)
    if not program:
        leave(ranks)
    if study is None:
        return None
    # Only the study's best settings are used any further.
    if left := list(context.store.list(f"{context.place}/checkpoints")):
        context.store.delete(left)
    assert trial.value is not None, "it has ended"
    return TrialRef(
        place=context.place,
        number=number,
        state=STATES[trial.state],
        value=trial.value,
        parameters=trial.params,
        tracking_run=trial.user_attrs[RUN],
        parent=context.features,
    )


def _begin(study: Study, number: int, context: StepContext) -> FrozenTrial:
    """
    Begin a trial, or go on with it, with the settings that its checkpoints are of.

    :raises BadConfigError: where two attempts have drawn other settings
    """
    key = f"{context.place}/{PARAMETERS}"
    kept = json.loads(context.store.get(key)) if context.store.exists(key) else None
    trial = study.begin(number, kept)
    if trial.state is TrialState.RUNNING and not context.store.put_new(key, canonical_json(trial.params)):
        raise BadConfigError(
            f"trial {number} has begun to train with other settings than the study's database says, "
            f"{settings_text(trial.params)}: to begin it anew, delete {context.place} in the store"
        )
    return trial


def _train(
    context: StepContext,
    config: TrialStep,
    ranks: Ranks,
    study: Study | None,
    trial: FrozenTrial,
    manifest: Mapping[str, Any],
) -> FrozenTrial:
    """Train a trial; return it as it ended, on rank 0."""
    number = config.number
    given = config.train.model_dump(mode="json")
    settings = check_section(Train, replaced_settings(given, trial.params), f"trial {number}: train")
    gpus = ranks.world_size if ranks.device.type == "cuda" else 0
    tags: Mapping[str, str] = {}
    if study is not None:
        verb = "goes on" if trial.intermediate_values else "begins"
        logger.info("trial %d %s: %s", number, verb, settings_text(trial.params))
        tags = trial_tags(study, number, context.deployment, context.input, config)

    def should_prune(state: TrainingState) -> bool:
        assert study is not None, "rank 0 is asked"
        epoch = state.history[-1]
        gpu_hours = gpus * sum(each.seconds for each in state.history) / SECONDS_PER_HOUR
        return study.report(number, epoch.epoch, epoch.validation_metric, gpu_hours)

    if settings.program is not None:
        began = time.monotonic()
        with follow_program(context, settings, ranks, manifest, tags) as (left, tracked):
            run_id = tracked.wait_until_open(TRACKING_SECONDS) if tracked and ranks.leads else ""
        if study is None:
            return trial
        assert left is not None, "on rank 0"
        found = left.metrics[short_name(settings.metric)]
        # How it went is not known before its end: there is nothing to prune.
        study.report(number, left.epoch, found, gpus * (time.monotonic() - began) / SECONDS_PER_HOUR)
        return _ended(study, study.end(number, found, run_id), settings)
    if settings.learner == TORCH:
        training: Any = train_model(context, settings, ranks, manifest, should_prune=should_prune, tags=tags)
    else:
        training = learn(context, settings, manifest, should_prune=should_prune, tags=tags)
    with training as (_, state, tracked):
        run_id = tracked.wait_until_open(TRACKING_SECONDS) if tracked and ranks.leads else ""
    if study is None:
        return trial
    assert state.best is not None, "epochs >= 1"
    # After MLflow has it all: a trial that has ended is not looked at again.
    value = None if state.pruned else state.best.validation_metric
    return _ended(study, study.end(number, value, run_id), settings)


def _ended(study: Study, trial: FrozenTrial, settings: Train) -> FrozenTrial:
    """Say how a trial ended, and return it."""
    best = study.best()
    logger.info(
        "trial %d is %s: %s %.6g; %s",
        *(trial.number, STATES[trial.state], short_name(settings.metric), trial.value),
        f"best so far: {best.value:.6g} with {settings_text(best.params)}" if best else "none is complete yet",
    )
    return trial
