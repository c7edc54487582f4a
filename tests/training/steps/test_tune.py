"""Studies by real torchrun, a real database and a real MLflow server."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import toy_model
from committed_refs import commit_lineage
from mlflow import MlflowClient

from mlops.contract.refs import (
    CheckpointRef,
    FeaturesRef,
    ModelVersionRef,
    ReportRef,
    StudyRef,
    TrialRef,
    canonical_json,
)
from mlops.contract.sections.steps import TrialStep, TuneStep
from mlops.contract.step import Failure
from mlops.steps.trial import PARAMETERS
from mlops.testing import no_recipe
from mlops.tuning.study import Study

RATES = {"low": 1e-4, "high": 0.3, "log": True, "step": None}
SPACE = {"learning_rate": RATES, "model_args.hidden": {"choices": [4, 8, 16]}}


@pytest.fixture
def search(project: Any, toy_features: FeaturesRef, config: Any) -> Any:
    """Makes the documents of a study's steps: ``search(number)`` of a trial, ``search(None)`` of its conclusion."""

    def document(number: int | None, train: Mapping[str, Any] | None = None, **changes: Any) -> Any:
        section = {
            "space": SPACE,
            "sampler": "random",
            "sampler_settings": {},
            "pruner": "none",
            "pruner_settings": {},
            "trials": 3,
            "hours": None,
            "gpu_hours": None,
            "parallel": 1,
            "connection": None,
            "seed": 5,
            "train": config(**{"processes": 1, "epochs": 2, **(train or {})}),
            **changes,
        }
        if number is None:
            return project.step_input("tune", section, toy_features, f"study_{section['trials']}")
        return project.step_input("trial", section | {"number": number}, toy_features, f"trial_{number}")

    return document


def step_of(document: Any) -> TuneStep:
    kind = TrialStep if document.step == "trial" else TuneStep
    return kind.model_validate(document.config)


def study_of(project: Any, document: Any) -> Study:
    return Study.open(document, project.store.uri, step_of(document), no_recipe)


def runs_of(project: Any) -> dict[str, Any]:
    """MLflow's runs by name."""
    client = MlflowClient(tracking_uri=project.tracking_uri)
    experiment = client.get_experiment_by_name(project.pipeline)
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def test_the_best_settings_are_trained_with(
    project: Any, toy_features: FeaturesRef, run_step: Any, search: Any, config: Any
) -> None:
    """Broken: a study would be for nothing, or a model say that it had other settings than it was trained with."""
    trials = [run_step(project, search(number)) for number in range(3)]
    assert all(isinstance(trial, TrialRef) for trial in trials), trials
    study = run_step(project, search(None))
    assert isinstance(study, StudyRef), study
    best = max(trials, key=lambda trial: trial.value)
    assert (study.best_trial, study.best_value, study.parameters) == (best.number, best.value, best.parameters)
    assert study.trials == {"complete": 3, "pruned": 0, "failed": 0, "not begun": 0}
    assert set(study.parameters) == set(SPACE)

    model = run_step(project, project.step_input("train", config(processes=1, epochs=2), study))
    assert isinstance(model, CheckpointRef), model
    assert model.parent == study
    assert model.metrics["ndcg@10"] == best.value, "the same training as the trial's"
    described = json.loads(project.store.read(model.artifacts["model"]))
    assert described["model_args"] == {"hidden": study.parameters["model_args.hidden"]}
    run = MlflowClient(tracking_uri=project.tracking_uri).get_run(model.tracking_run)
    assert run.data.params["learning_rate"] == str(study.parameters["learning_rate"])
    assert run.data.tags["mlops.study"] == study.name


@pytest.fixture
def started(project: Any, toy_features: FeaturesRef, run_step: Any, search: Any, config: Any) -> Any:
    """Runs a trial that starts from a version, as its operator does that has looked the version up."""

    def trained(key: str, **changes: Any) -> CheckpointRef:
        section = config(processes=1, epochs=1, **changes)
        ref = run_step(project, project.step_input("train", section, toy_features, key))
        assert isinstance(ref, CheckpointRef), ref
        return ref

    first, other = trained("first"), trained("other", seed=8)
    report = ReportRef(place="evaluate/first", passed=True, reason="Good.", metrics={}, champion=None, parent=first)
    commit_lineage(project.store, report)

    def run(number: int, *, told: str = "first", found: str = "first") -> Any:
        weights = {"first": first.artifacts["weights"], "other": other.artifacts["weights"]}
        checkpoint = replace(first, artifacts={**first.artifacts, "weights": weights[told]})
        version = ModelVersionRef(
            place="", name="toy", version="1", semantic_version="", parent=replace(report, parent=checkpoint)
        )
        start = {"model": "toy/1", "found": {**asdict(weights[found]), "version": "1"}}
        document = search(number, {"initialise": start, "epochs": 1}, space={"learning_rate": RATES})
        return run_step(project, replace(document, baselines={"initialise": version}))

    return run


def test_a_trial_starts_from_no_other_weights_than_the_version_s(started: Any) -> None:
    """Broken: who may edit a tag in MLflow has a model learn from weights of their own, under a version's name."""
    assert isinstance(started(0), TrialRef)
    failure = started(1, told="other", found="other")
    assert isinstance(failure, Failure), failure
    assert "the baseline 'initialise' of trial was changed after its step had returned it: " in failure.message
    assert "artifacts.weights" in failure.message


def test_a_trial_reads_the_weights_that_its_version_names(started: Any) -> None:
    """Broken: the version is checked, and others than its weights are read."""
    assert isinstance(started(1, found="other"), Failure)


def test_mlflow_shows_the_study_with_its_trials(project: Any, run_step: Any, search: Any, tmp_path: Path) -> None:
    """Broken: nobody could see why these settings were taken."""
    trials = [run_step(project, search(number)) for number in range(3)]
    study = run_step(project, search(None))
    assert isinstance(study, StudyRef), study
    runs = runs_of(project)
    assert {f"trial {trial.number}": trial.tracking_run for trial in trials} == {
        name: run.info.run_id for name, run in runs.items() if name.startswith("trial")
    }
    for trial in trials:
        run = runs[f"trial {trial.number}"]
        assert run.data.tags["mlflow.parentRunId"] == study.tracking_run
        assert run.data.params["learning_rate"] == str(trial.parameters["learning_rate"])
        assert run.info.status == "FINISHED"
    client = MlflowClient(tracking_uri=project.tracking_uri)
    parent = client.get_run(study.tracking_run)
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["best_ndcg_at_10"] == study.best_value
    names = {"history.png", "importance.png", "parallel_coordinates.png", "trials.csv", "trials.json"}
    assert {file.path for file in client.list_artifacts(study.tracking_run, "study")} == {f"study/{n}" for n in names}
    with open(client.download_artifacts(study.tracking_run, "study/trials.csv", str(tmp_path))) as file:
        rows = list(csv.DictReader(file))
    assert [int(row["number"]) for row in rows] == [0, 1, 2]
    assert [float(row["value"]) for row in rows] == [trial.value for trial in trials]
    assert json.loads(project.store.read(study.artifacts["trials"]))[0]["state"] == "complete"


def test_a_killed_trial_goes_on_as_the_same_one(project: Any, run_step: Any, search: Any) -> None:
    """Broken: a preemption would cost a trial's work, or leave two of it in the study."""
    train = {"loss": "include.toy.model:slow_loss", "processes": 2, "epochs": 3}
    checkpoints = f"pipelines/{project.pipeline}/trial/trial_1/checkpoints"
    document = search(1, train)
    first = project.start(document, processes=2, name="trial")
    first.wait_until(lambda: project.steps_saved("trial_1", step="trial"))
    first.kill()
    [struck] = study_of(project, document).trials().values()
    assert struck.state.name == "RUNNING", "killed too late to prove anything"
    second = project.start(document, processes=2, name="trial")
    ref = second.result()
    assert isinstance(ref, TrialRef), second.log
    assert "going on after step" in second.log
    assert ref.parameters == struck.params
    [trial] = study_of(project, document).trials().values()
    assert (trial.number, trial.state.name, len(trial.intermediate_values)) == (struck.number, "COMPLETE", 3)
    assert not list(project.store.list(checkpoints)), "kept for nothing"
    [run] = [run for name, run in runs_of(project).items() if name.startswith("trial")]
    assert run.info.run_id == ref.tracking_run


def test_a_trial_keeps_the_settings_that_it_has_begun_with(project: Any, run_step: Any, search: Any) -> None:
    """Broken: a database that was lost or set back would have a checkpoint go on with settings drawn anew."""
    first = run_step(project, search(0))
    kept = f"{first.place}/{PARAMETERS}"
    assert json.loads(project.store.get(kept)) == first.parameters
    begun = {"learning_rate": 0.125, "model_args.hidden": 4}
    project.store.put(f"{first.place.replace('trial_0', 'trial_1')}/{PARAMETERS}", canonical_json(begun))
    assert run_step(project, search(1)).parameters == begun
    # The database may say otherwise, where it was set back to a backup.
    study_of(project, search(2)).begin(2)
    project.store.put(f"{first.place.replace('trial_0', 'trial_2')}/{PARAMETERS}", canonical_json(begun))
    refused = run_step(project, search(2))
    assert isinstance(refused, Failure)
    assert not refused.retryable
    assert "trial 2 has begun to train with other settings than the study's database says" in refused.message


@pytest.mark.parametrize(
    ("pruner", "settings"), [("successive_halving", {}), ("median", {"startup_trials": 1})], ids=["halving", "median"]
)
def test_a_hopeless_trial_is_pruned_on_all_ranks(
    project: Any, run_step: Any, search: Any, pruner: str, settings: Mapping[str, int]
) -> None:
    """Broken: trials without prospects would take as long as good ones, or hang because a rank goes on alone."""
    space = {"learning_rate": {"choices": [0.05, 1e-9]}}
    changes = {"space": space, "sampler": "grid", "pruner": pruner, "pruner_settings": settings, "trials": 2}
    train = {"processes": 2, "epochs": 4}
    drawn = [study_parameters(project, search(number, train, **changes), number) for number in (0, 1)]
    good, bad = sorted((0, 1), key=lambda number: -drawn[number]["learning_rate"])
    for number in (good, bad):
        started = project.start(search(number, train, **changes), processes=2, name=f"trial{number}")
        ref = started.result()
        assert isinstance(ref, TrialRef), started.log
    assert ref.state == "pruned"
    assert "is pruned" in started.log
    run = runs_of(project)[f"trial {bad}"]
    assert run.info.status == "KILLED"
    assert run.data.tags["mlops.pruned"] == "True"
    client = MlflowClient(tracking_uri=project.tracking_uri)
    assert len(client.get_metric_history(ref.tracking_run, "validation_ndcg_at_10")) < 4
    study = run_step(project, search(None, train, **changes))
    assert (study.best_trial, study.trials["complete"], study.trials["pruned"]) == (good, 1, 1)


def study_parameters(project: Any, document: Any, number: int) -> Mapping[str, Any]:
    """That the trial will have."""
    from mlops.tuning.space import distributions, draw

    study = study_of(project, document)
    config = step_of(document)
    assert distributions(config.space)
    return draw(study._study, config, number, no_recipe)


def test_what_nobody_ends_counts_as_failed(project: Any, run_step: Any, search: Any) -> None:
    """Broken: a trial whose worker is gone for good would be running for ever, or hold up the pipeline."""
    done = run_step(project, search(0))
    study_of(project, search(1)).begin(1)
    ref = run_step(project, search(None))
    assert isinstance(ref, StudyRef), ref
    assert ref.trials == {"complete": 1, "pruned": 0, "failed": 1, "not begun": 1}
    assert ref.best_trial == done.number
    again = run_step(project, search(1))
    assert isinstance(again, TrialRef), "cleared, it is trained after all"


def test_without_any_complete_trial_there_is_no_choice(project: Any, run_step: Any, search: Any) -> None:
    study_of(project, search(0)).begin(0)
    failure = run_step(project, search(None))
    assert isinstance(failure, Failure)
    assert not failure.retryable
    assert "none of the 3 trials" in failure.message
    assert "1 failed, 2 not begun" in failure.message


def test_a_database_that_was_lost_takes_no_trial_along(project: Any, run_step: Any, search: Any) -> None:
    """Broken: hours of training would count as not begun, or a worse trial be the best of a night."""
    trials = [run_step(project, search(number)) for number in range(3)]
    other = search(0, seed=9)
    assert isinstance(run_step(project, replace(other, run=replace(other.run, run_key="other"))), TrialRef)
    database = Path(project.store.uri.removeprefix("file://")) / f"pipelines/{project.pipeline}/studies.db"
    database.unlink()
    run_step(project, search(3, trials=4))
    study = run_step(project, search(None, trials=4))
    assert isinstance(study, StudyRef), study
    assert study.trials == {"complete": 4, "pruned": 0, "failed": 0, "not begun": 0}
    rows = json.loads(project.store.read(study.artifacts["trials"]))
    found = [(row["number"], row["state"], row["value"], row["tracking_run"]) for row in rows[:3]]
    assert found == [(trial.number, trial.state, trial.value, trial.tracking_run) for trial in trials]
    assert study.best_value == max(row["value"] for row in rows)


@pytest.mark.parametrize("budget", [{"hours": 1e-9}, {"gpu_hours": 1e-9}], ids=["hours", "gpu hours"])
def test_a_spent_budget_begins_no_trial(project: Any, run_step: Any, search: Any, budget: dict[str, float]) -> None:
    """Broken: a study would cost what was never meant to be spent."""
    study = study_of(project, search(0))
    study.begin(0)
    study.report(0, 1, 0.5, gpu_hours=0.5)
    failure = run_step(project, search(1, **budget))
    assert isinstance(failure, Failure)
    assert failure.type == "BudgetSpentError"
    assert not failure.retryable
    assert f"tune.{next(iter(budget))} is 1e-09" in failure.message
    assert isinstance(run_step(project, search(0, **budget)), TrialRef), "what has begun goes on"


def test_a_larger_budget_goes_on_with_the_same_study(project: Any, run_step: Any, search: Any) -> None:
    """Broken: ten more trials would mean to train the first ones again."""
    first = run_step(project, search(0, trials=1))
    assert run_step(project, search(None, trials=1)).trials["complete"] == 1
    run_step(project, search(1, trials=2))
    study = run_step(project, search(None, trials=2))
    assert study.trials["complete"] == 2
    rows = json.loads(project.store.read(study.artifacts["trials"]))
    assert rows[0]["tracking_run"] == first.tracking_run


@pytest.mark.parametrize(
    ("conn_type", "said"),
    [
        (None, "the environment has no MLOPS_CONNECTION_STUDIES, which the task's operator sets from Airflow's"),
        ("mysql", "connection 'studies' is of type 'mysql', not 'postgres'"),
    ],
    ids=["not handed over", "of another database"],
)
def test_a_connection_that_does_not_serve_is_said(
    project: Any, run_step: Any, search: Any, connect: Any, conn_type: str | None, said: str
) -> None:
    """Broken: the message would send its reader to ingest, which has nothing to do with it."""
    if conn_type is not None:
        connect("studies", conn_type)
    for document in (search(0, connection="studies"), search(None, connection="studies")):
        failure = run_step(project, document)
        assert isinstance(failure, Failure)
        assert failure.message.startswith(f"tune.connection: {said}")
        assert not failure.retryable


def test_the_lowest_loss_is_the_best(project: Any, run_step: Any, search: Any, binary_features: FeaturesRef) -> None:
    """Broken: where less is better, a study would give up its good trials and train with the settings of the worst."""
    changes = {
        "space": {"learning_rate": {"choices": [0.05, 1e-9]}},
        "sampler": "grid",
        "pruner": "successive_halving",
        "trials": 2,
    }
    train = {"objective": "binary", "metric": "log_loss", "epochs": 3}
    commit_lineage(project.store, binary_features)

    def document(number: int | None) -> Any:
        return replace(search(number, train, **changes), ref=binary_features)

    drawn = [study_parameters(project, document(number), number) for number in (0, 1)]
    good, bad = sorted((0, 1), key=lambda number: -drawn[number]["learning_rate"])
    trials = {number: run_step(project, document(number)) for number in (good, bad)}
    assert [trials[number].state for number in (good, bad)] == ["complete", "pruned"], trials
    assert trials[good].value < trials[bad].value
    study = run_step(project, document(None))
    assert (study.best_trial, study.best_value) == (good, trials[good].value)


@pytest.mark.parametrize("rounds", [3, 1], ids=["after some rounds", "after each round"])
def test_settings_of_another_learner_are_searched(
    project: Any, run_step: Any, toy_features: FeaturesRef, rounds: int
) -> None:
    """In plain processes; the worse of two trials is ended early, after any boosting round where these are epochs."""
    commit_lineage(project.store, toy_features)
    train = {
        "learner": "lightgbm",
        "learner_settings": {"rounds_per_epoch": rounds, "learning_rate": 0.1},
        "objective": "ranking",
        "metric": "ndcg@10",
        "epochs": 9 // rounds,
    }
    section = TuneStep.model_validate(
        {
            "space": {"learner_settings.learning_rate": {"choices": [0.2, 1e-6]}},
            "sampler": "grid",
            "pruner": "successive_halving",
            "train": train,
        }
    ).model_dump(mode="json")

    def document(number: int | None) -> Any:
        if number is None:
            return project.step_input("tune", section, toy_features, "study_2")
        return project.step_input("trial", section | {"number": number}, toy_features, f"trial_{number}")

    drawn = [study_parameters(project, document(number), number) for number in (0, 1)]
    good, bad = sorted((0, 1), key=lambda number: -drawn[number]["learner_settings.learning_rate"])
    trials = {number: run_step(project, document(number)) for number in (good, bad)}
    assert (trials[good].state, trials[bad].state) == ("complete", "pruned")
    assert trials[good].value > trials[bad].value
    client = MlflowClient(tracking_uri=project.tracking_uri)
    assert len(client.get_metric_history(trials[bad].tracking_run, "validation_ndcg_at_10")) < 9 // rounds
    study = run_step(project, document(None))
    assert (study.best_trial, study.best_value) == (good, trials[good].value)
    trained = run_step(project, project.step_input("train", section["train"], study, "train"))
    assert isinstance(trained, CheckpointRef), trained
    assert trained.metrics["ndcg@10"] == pytest.approx(trials[good].value)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_script_of_ones_own_is_searched_too(
    project: Any, run_step: Any, search: Any, config: Any, processes: int
) -> None:
    """Broken: the settings of whoever has a loop of his own could not be searched, nor be those that a study found."""
    (project.home / "include/toy/train_mine.py").write_text(toy_model.PROGRAM)
    own = {"program": "include/toy/train_mine.py", "processes": processes, "epochs": 1}

    def run(document: Any) -> Any:
        if document.step == "tune":
            return run_step(project, document)
        started = project.start(document, processes=processes, name=document.run.run_key)
        return started.result()

    trials = [run(search(number, train=own)) for number in range(3)]
    assert all(isinstance(trial, TrialRef) for trial in trials), trials
    assert len({trial.value for trial in trials}) == 3
    study = run(search(None, train=own))
    assert isinstance(study, StudyRef), study
    best = max(trials, key=lambda trial: trial.value)
    assert (study.best_value, study.parameters) == (best.value, best.parameters)
    model = run(project.step_input("train", config(**own), study))
    assert isinstance(model, CheckpointRef), model
    assert model.metrics["ndcg@10"] == best.value, "the same training as the trial's"
    described = json.loads(project.store.read(model.artifacts["model"]))
    assert described["model_args"] == {"hidden": study.parameters["model_args.hidden"]}
