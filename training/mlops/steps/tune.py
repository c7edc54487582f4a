"""Tune: all trials of a study in, the best settings out."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

from optuna.trial import TrialState

from mlops.contract.refs import INPUT, StudyRef, TrialRef
from mlops.contract.sections.steps import TuneStep
from mlops.contract.step import StepError, StepInput
from mlops.metrics.metric import load_metric
from mlops.steps import StepContext
from mlops.tracking.connection import allowed
from mlops.tuning.plots import draw_plots
from mlops.tuning.space import NUMBER
from mlops.tuning.study import Study, study_name
from mlops.tuning.study_logging import STATES, files, open_study_run, settle_runs, table

logger = logging.getLogger(__name__)


class NoCompleteTrialError(StepError):
    """The study has no complete trial to choose from."""

    retryable = False


def run(context: StepContext) -> StudyRef:
    config = context.section(TuneStep)
    study = Study.open(context.input, context.store.uri, config, context.own)
    study.settle()
    _restore(context, study, config)
    best, rows = study.best(), table(study)
    states = Counter(row["state"] for row in rows)
    counts = {state: states[state] for state in STATES.values()} | {"not begun": config.num_trials - len(rows)}
    outcomes = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    if best is None:
        raise NoCompleteTrialError(
            f"none of the {config.num_trials} trials of {study.name} came to its end ({outcomes}): look at their logs; "
            "a pruner may be too strict, or the budget too small"
        )
    metric = load_metric(config.train.metric, context.own)
    number, value = best.user_attrs[NUMBER], best.value
    assert value is not None, "it is complete"
    logger.info("%s; the best is trial %d with %s %.6g: %s", outcomes, number, metric.name, value, best.params)
    tracked = open_study_run(context.deployment, context.input, config, study.name)
    stored, written = tracked.stored, files(rows)
    settle_runs(stored, study)
    stored.log_bytes("study", {**written, **draw_plots(study, metric.title)})
    stored.log_values(
        {
            allowed(f"best_{metric.name}"): value,
            "best_trial": number,
            **{f"trials_{name}": n for name, n in counts.items()},
        },
        {f"mlops.best.{name}": str(value) for name, value in best.params.items()},
    )
    tracked.finish()
    return StudyRef(
        place=context.place,
        artifacts={"trials": context.publish("trials.json", written["trials.json"])},
        name=study.name,
        trials=counts,
        best_trial=number,
        best_value=value,
        parameters=best.params,
        tracking_run=stored.run_id,
        parent=context.features,
    )


def _restore(context: StepContext, study: Study, config: TuneStep) -> None:
    """
    Restore trials that are committed to the store, but missing in a study's database: it was lost or set back, or they
    are the pipeline's, and an experiment goes on from them.
    """
    run = context.run
    known = {number for number, trial in study.trials().items() if trial.state is not TrialState.FAIL}
    lacking = set(range(config.num_trials)) - known
    night = run.run_key.rpartition("-")[0]  # with which the run keys of its trials begin, too
    folders = sorted({f"{each.folder}/trial" for each in (run, replace(run, experiment=""))})
    places = [f"{folder}/{run_key}" for folder in folders for run_key in context.store.folders(folder) if lacking]
    for place in places:
        ref = context.store.committed(place) if place.rpartition("/")[2].startswith(night) else None
        if not isinstance(ref, TrialRef) or ref.number not in lacking:
            continue
        earlier = StepInput.load(context.store.read(ref.artifacts[INPUT]).decode())
        same = replace(earlier, run=replace(earlier.run, experiment=run.experiment))
        if study_name(same) == study.name:
            lacking.discard(ref.number)
            logger.warning("the database of studies lacks trial %d: taken from %s", ref.number, ref.place)
            study.restore(ref)
