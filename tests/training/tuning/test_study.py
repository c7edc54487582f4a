"""Studies whose trials are killed, raced for and drawn again, on SQLite and PostgreSQL; the training is a formula."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import random
import sqlite3
import time
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from turns import by_turns

from mlops.contract.sections.steps import TuneStep
from mlops.contract.step import BadConfigError, RunIdentity, StepInput
from mlops.testing import no_recipe
from mlops.tuning.space import draw
from mlops.tuning.storage import StudyStorageError
from mlops.tuning.study import Study, study_name

SPACE = {
    "learning_rate": {"low": 1e-5, "high": 1e-1, "log": True, "step": None},
    "global_batch": {"choices": [8, 16, 32]},
    "schedule.warmup_steps": {"low": 0, "high": 100, "log": False, "step": 10},
}
GRID = {"global_batch": {"choices": [8, 16, 32]}, "epochs": {"low": 1, "high": 3, "log": False, "step": None}}
NUM_TRIALS = 9
EPOCHS = 3
PAUSE = 0.05
TRAIN = {"model": "include.toy.model:build", "objective": "ranking", "metric": "ndcg@10", "epochs": EPOCHS}


def document(name: str, **changes: Any) -> StepInput:
    run = RunIdentity(
        pipeline=name,
        run_key="key",
        interval_start="2024-01-01T00:00:00+00:00",
        interval_end="2024-01-02T00:00:00+00:00",
        timezone="UTC",
        dag_id=name,
        task_id="tune_trial",
        run_id="manual",
        try_number=1,
    )
    config = {
        "space": SPACE,
        "sampler": "random",
        "sampler_settings": {},
        "pruner": "none",
        "pruner_settings": {},
        "trials": NUM_TRIALS,
        "hours": None,
        "gpu_hours": None,
        "parallel": 3,
        "connection": None,
        "seed": 1,
        "train": TRAIN,
        **changes,
    }
    return StepInput(step="trial", run=run, config=config)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where studies are kept."""

    store: str
    connection: str | None

    def study(self, name: str, **changes: Any) -> Study:
        work = document(name, connection=self.connection, **changes)
        return Study.open(work, self.store, TuneStep.model_validate(work.config), no_recipe)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    store = f"file://{tmp_path}/store"
    if request.param == "sqlite":
        return Place(store, None)
    request.getfixturevalue("connect")("studies", "postgres", request.getfixturevalue("postgres"))
    return Place(store, "studies")


def quality(parameters: Mapping[str, Any], epoch: int) -> float:
    rate, batch = parameters.get("learning_rate", 1e-3), parameters["global_batch"]
    return 1 - abs(math.log10(rate) + 3) / 10 - batch / 1000 - 0.1 / epoch


def work(place: Place, name: str, number: int, pause: float, changes: Mapping[str, Any]) -> None:
    """What the rank 0 of a trial does."""
    study = place.study(name, **changes)
    trial = study.begin(number)
    if trial.state is not TrialState.RUNNING:
        return
    for epoch in range(1, EPOCHS + 1):
        time.sleep(pause)
        if study.report(number, epoch, quality(trial.params, epoch), 0.0):
            study.end(number, None, f"run {number}")
            return
    study.end(number, quality(trial.params, EPOCHS), f"run {number}")


def start(*arguments: Any) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    return process


def undisturbed(place: Place, name: str, order: Sequence[int] = range(NUM_TRIALS), **changes: Any) -> Study:
    for number in order:
        work(place, name, number, 0.0, changes)
    return place.study(name, **changes)


def parameters(study: Study) -> dict[int, dict[str, Any]]:
    return {number: trial.params for number, trial in study.trials().items()}


def strike(place: Place, name: str, seconds: float, chance: random.Random, changes: Mapping[str, Any]) -> int:
    """
    Run all trials, three at once, and kill each at a random moment, twice at most.

    :param seconds: that a trial takes
    :return: how many were killed
    """
    todo, kills = list(range(NUM_TRIALS)), dict.fromkeys(range(NUM_TRIALS), 0)
    running: dict[int, tuple[BaseProcess, float]] = {}
    while todo or running:
        while todo and len(running) < 3:
            number = todo.pop(0)
            lives = chance.uniform(0, 2 * seconds) if kills[number] < 2 else math.inf
            running[number] = start(place, name, number, PAUSE, changes), time.monotonic() + lives
        time.sleep(0.005)
        for number, (process, end) in list(running.items()):
            if process.is_alive() and time.monotonic() > end:
                process.kill()
                process.join()
                kills[number] += 1
            if not process.is_alive():
                del running[number]
                if process.exitcode:
                    todo.insert(0, number)
    return sum(kills.values())


@pytest.mark.server
def test_kills_at_any_moment_leave_the_same_study(place: Place) -> None:
    """Broken: a night on spot nodes would find other settings than a quiet one, or train a trial twice."""
    changes = {"sampler": "random"} if place.connection is None else {"sampler": "grid", "space": GRID}
    began = time.monotonic()
    calm = undisturbed(place, "calm", **changes)
    seconds = (time.monotonic() - began) / NUM_TRIALS + EPOCHS * PAUSE
    chance = random.Random(1)
    for attempt in range(5):
        name = f"struck {attempt}"
        num_kills = strike(place, name, seconds, chance, changes)
        study = place.study(name, **changes)
        assert parameters(study) == parameters(calm)
        assert all(trial.state is TrialState.COMPLETE for trial in study.trials().values())
        assert len(study._study.get_trials()) == NUM_TRIALS, "none doubled"
        best, expected = study.best(), calm.best()
        assert best is not None
        assert expected is not None
        assert best.params == expected.params
        if num_kills >= NUM_TRIALS // 2:
            return
        seconds /= 2  # the machine had other work while it was measured
    pytest.fail("killed too seldom to prove anything")


@pytest.mark.server
@pytest.mark.parametrize(("sampler", "space"), [("random", SPACE), ("grid", GRID)], ids=["random", "grid"])
def test_the_order_of_trials_does_not_matter(place: Place, sampler: str, space: Any) -> None:
    """Broken: what a study finds would depend on when Airflow's workers are free."""
    changes = {"sampler": sampler, "space": space}
    forward = undisturbed(place, f"forward_{sampler}", **changes)
    backward = undisturbed(place, f"backward_{sampler}", range(NUM_TRIALS)[::-1], **changes)
    assert parameters(forward) == parameters(backward)
    if sampler == "grid":
        assert len({tuple(found.values()) for found in parameters(forward).values()}) == NUM_TRIALS, "each once"


@pytest.mark.parametrize("pruner", by_turns(["median", "successive_halving", "hyperband"]))
def test_tpe_is_reproducible_one_at_a_time(tmp_path: Path, pruner: str) -> None:
    """Broken: nobody could find out how a model's settings were found. With several at once the order decides."""
    place = Place(f"file://{tmp_path}", None)
    changes = {"sampler": "tpe", "pruner": pruner, "trials": 10}
    found = [undisturbed(place, name, range(10), **changes) for name in (f"one_{pruner}", f"other_{pruner}")]
    if pruner != "hyperband":  # whose brackets follow from the study's name
        assert parameters(found[0]) == parameters(found[1])
    states = [trial.state for trial in found[0].trials().values()]
    assert TrialState.PRUNED in states
    best = found[0].best()
    assert best is not None
    assert best.value == max(trial.value or 0 for trial in found[0].trials().values())


@pytest.mark.parametrize("pruner", ["median", "successive_halving", "hyperband"])
def test_an_epoch_that_is_done_again_is_answered_as_before(tmp_path: Path, pruner: str) -> None:
    """Broken: a kill between answer and checkpoint would save a trial that is to be pruned."""
    place, changes = Place(f"file://{tmp_path}", None), {"pruner": pruner, "trials": 12}
    calm = undisturbed(place, "halved", range(12), **changes)
    struck = Place(f"file://{tmp_path}/struck", None)
    for number in range(12):
        params = struck.study("halved", **changes).begin(number).params
        for epoch in range(1, EPOCHS + 1):
            value = quality(params, epoch)
            answers = [struck.study("halved", **changes).report(number, epoch, value, 0.0) for _ in range(3)]
            assert len({*answers}) == 1, "it is asked again by a process that knows nothing"
            if answers[0]:
                break
        struck.study("halved", **changes).end(number, None if answers[0] else value, "run")
    ended = struck.study("halved", **changes)
    assert [trial.state for trial in ended.trials().values()] == [trial.state for trial in calm.trials().values()]
    assert TrialState.PRUNED in [trial.state for trial in calm.trials().values()]


def test_half_a_trial_goes_on_with_its_own_settings(tmp_path: Path) -> None:
    """Broken: where the database was lost, a checkpoint would go on with settings that are drawn anew."""
    changes = {"sampler": "tpe", "trials": 20}
    study = undisturbed(Place(f"file://{tmp_path}", None), "lost", range(12), **changes)
    drawn = study.begin(12).params
    anew = Place(f"file://{tmp_path}/anew", None).study("lost", **changes)
    assert anew.begin(12, drawn).params == drawn
    assert anew.begin(13).params != drawn


def test_tpe_learns_from_the_trials_before(tmp_path: Path) -> None:
    """Broken: it would be no better than chance."""
    place = Place(f"file://{tmp_path}", None)
    study = undisturbed(place, "learning", range(24), sampler="tpe", trials=24)
    values = [trial.value or 0 for trial in study.trials().values()]
    assert sum(values[-8:]) > sum(values[:8])


@pytest.mark.server
def test_many_trials_begin_at_the_same_moment(place: Place) -> None:
    """Broken: the first trials would fail at making the database's tables, or the study be there twice."""
    processes = [start(place, "crowded", number, 0.0, {}) for number in range(6)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 6
    assert sorted(place.study("crowded").trials()) == list(range(6))


@pytest.mark.server
def test_a_trial_begun_by_two_attempts_is_one(place: Place) -> None:
    """Broken: where a lost attempt lives on beside its retry, they would train with different settings."""
    processes = [start(place, "doubled", 0, 0.05, {"sampler": "tpe"}) for _ in range(3)]
    for process in processes:
        process.join(120)
    study = place.study("doubled", sampler="tpe")
    study.settle()
    assert [trial.state for trial in study.trials().values()] == [TrialState.COMPLETE]


def test_a_failed_trial_that_is_tried_again_has_the_same_settings(tmp_path: Path) -> None:
    """Broken: it would go on from a checkpoint of other settings."""
    study = Place(f"file://{tmp_path}", None).study("again", sampler="tpe")
    first = study.begin(0)
    study.settle()
    assert study.trials()[0].state is TrialState.FAIL
    second = study.begin(0)
    assert second.state is TrialState.RUNNING
    assert second.params == first.params


def test_what_changes_the_results_makes_another_study(tmp_path: Path) -> None:
    """Broken: trials of other settings would count, or a larger budget begin anew."""
    name = study_name(document("p"))
    assert study_name(document("p", trials=99, hours=1.0, gpu_hours=2.0, parallel=9)) == name
    for change in ({"seed": 2}, {"space": GRID}, {"sampler": "tpe"}, {"pruner": "median"}, {"train": {"epochs": 3}}):
        assert study_name(document("p", **change)) != name


def test_a_database_that_is_away_is_worth_a_retry(connect: Any, tmp_path: Path) -> None:
    connect("away", "postgres", "postgresql://me:s3cret@127.0.0.1:9/d")
    with pytest.raises(StudyStorageError, match="check tune.connection") as caught:
        Place(f"file://{tmp_path}", "away").study("p")
    assert caught.value.retryable
    assert "s3cret" not in str(caught.value)


@pytest.mark.server
def test_trials_that_somebody_else_has_put_there_are_left_alone(place: Place) -> None:
    """Broken: one look with a dashboard that begins trials would end the pipeline."""
    study = place.study("shared")
    study._study.enqueue_trial({"learning_rate": 1e-2, "global_batch": 8, "schedule.warmup_steps": 0})
    study._study.ask()
    work(place, "shared", 0, 0.0, {})
    study._study.enqueue_trial({"learning_rate": 1e-2, "global_batch": 8, "schedule.warmup_steps": 0})
    work(place, "shared", 1, 0.0, {})
    study.settle()
    assert parameters(study) == parameters(undisturbed(place, "alone", range(2)))
    states = [trial.state for trial in study._study.get_trials() if not trial.user_attrs]
    assert states == [TrialState.RUNNING, TrialState.WAITING]


def test_a_database_of_another_version_is_named(tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}", None)
    place.study("p").begin(0)
    with sqlite3.connect(tmp_path / "pipelines/p/studies.db") as database:
        database.execute("update alembic_version set version_num = 'v9.9.0.a'")
    with pytest.raises(BadConfigError, match=r"studies cannot be used: .*version.* or move a SQLite file"):
        place.study("p")


def test_a_huge_grid_is_drawn_from_at_once(tmp_path: Path) -> None:
    """Broken: a search of twenty trials would take gigabytes to choose them."""
    space = {f"model_args.{name}": {"choices": list(range(60))} for name in "abcdefghijkl"}
    train = {**TRAIN, "model_args": dict.fromkeys("abcdefghijkl", 0)}
    study = Place(f"file://{tmp_path}", None).study("huge", sampler="grid", space=space, train=train)
    found = [study.begin(number).params for number in range(NUM_TRIALS)]
    assert len({tuple(point.values()) for point in found}) == NUM_TRIALS
    assert all(len({point[name] for point in found}) > 1 for name in list(space)[:10]), "a sample of all"


def test_a_remote_store_needs_a_database() -> None:
    with pytest.raises(BadConfigError, match=r"give tune.connection, the Airflow connection of a PostgreSQL"):
        Place("s3://bucket", None).study("p")


def test_numbers_are_drawn_as_the_setting_takes_them(tmp_path: Path) -> None:
    """Broken: a whole number would come as a fraction, or a step be missed."""
    study = Place(f"file://{tmp_path}", None).study("drawn")
    for number in range(20):
        found = draw(study._study, TuneStep.model_validate(document("drawn").config), number, no_recipe)
        assert list(found) == sorted(SPACE)
        assert 1e-5 <= found["learning_rate"] <= 1e-1
        assert found["global_batch"] in (8, 16, 32)
        assert isinstance(found["schedule.warmup_steps"], int)
        assert found["schedule.warmup_steps"] % 10 == 0
