"""What of a study goes to MLflow: a run for it all, whose children are the trials' runs."""

from __future__ import annotations

import csv
import io
from typing import Any, Final

from optuna.trial import FrozenTrial, TrialState

from mlops.contract.refs import canonical_json
from mlops.contract.sections.steps import TuneStep
from mlops.contract.step import StepInput
from mlops.process import ProcessSettings
from mlops.tracking.provenance import lineage_tags, run_tags
from mlops.tracking.run import PARENT_TAG, StoredRun, TrackedRun, open_run
from mlops.tuning.study import BEGUN, GPU_HOURS, RUN, Study

OPENING_SECONDS: Final = 60.0
STUDY_TAG, TRIAL_TAG = "mlops.trial_of", "mlops.trial"
STATES: Final = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
_STATUSES: Final = {TrialState.COMPLETE: "FINISHED", TrialState.PRUNED: "KILLED", TrialState.FAIL: "FAILED"}


def open_study_run(deployment: ProcessSettings, document: StepInput, config: TuneStep, name: str) -> TrackedRun:
    """:param document: of a trial, or of the step that concludes"""
    run, features = document.run, document.ref
    assert features is not None
    settings = {name: getattr(config, name) for name in ("sampler", "pruner", "seed", "trials", "hours", "gpu_hours")}
    settings |= {f"sampler.{name}": value for name, value in config.sampler_settings.items()}
    settings |= {f"pruner.{name}": value for name, value in config.pruner_settings.items()}
    space = {f"space.{name}": dimension.model_dump(mode="json") for name, dimension in config.space.items()}
    return open_run(
        deployment.tracking_uri,
        experiment=run.owner,
        run_key=name,
        name=f"tune {run.pipeline} {run.interval_end[:10]}",
        params=settings | space,
        tags={**run_tags(run, deployment.home), **lineage_tags(features), "mlops.study": name},
    )


def trial_tags(
    study: Study, number: int, deployment: ProcessSettings, document: StepInput, config: TuneStep
) -> dict[str, str]:
    """For the run of a trial; opens the study's where this is the first trial."""
    parent = study.tracking_run
    if parent is None:
        tracked = open_study_run(deployment, document, config, study.name)
        try:
            parent = tracked.wait_until_open(OPENING_SECONDS)
        finally:
            tracked.close()
        study.track(parent)
    return {PARENT_TAG: parent, "mlflow.runName": f"trial {number}", STUDY_TAG: study.name, TRIAL_TAG: str(number)}


def settle_runs(run: StoredRun, study: Study) -> None:
    """The runs of trials that were killed at a bad moment, or that took another run for the study's."""
    statuses = {str(number): _STATUSES[trial.state] for number, trial in study.trials().items()}
    run.adopt(STUDY_TAG, study.name, statuses, TRIAL_TAG)


def table(study: Study) -> list[dict[str, Any]]:
    """A row for each trial."""
    return [_row(number, trial) for number, trial in study.trials().items()]


def _row(number: int, trial: FrozenTrial) -> dict[str, Any]:
    return {
        "number": number,
        "state": STATES[trial.state],
        "value": trial.value,
        **{f"parameters.{name}": value for name, value in trial.params.items()},
        "epochs": len(trial.intermediate_values),
        "begun": trial.user_attrs.get(BEGUN),
        "seconds": trial.duration.total_seconds() if trial.duration else None,
        "gpu_hours": trial.user_attrs.get(GPU_HOURS, 0.0),
        "tracking_run": trial.user_attrs.get(RUN),
    }


def files(rows: list[dict[str, Any]]) -> dict[str, bytes]:
    """The table, for programs and for people."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return {"trials.json": canonical_json(rows), "trials.csv": text.getvalue().encode()}
