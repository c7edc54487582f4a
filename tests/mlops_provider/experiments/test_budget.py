from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from obstore.store import LocalStore

from mlops.contract.rest import with_budget, with_cancellation
from mlops.contract.section import SpecError
from mlops.contract.sections.tune import Tune
from mlops_provider.experiments.budget import Budget

TUNE = Tune.model_validate({"space": {"epochs": {"low": 1, "high": 9}}, "trials": 20, "hours": 1})


@pytest.mark.parametrize(
    ("budget", "num_begun", "expected"),
    [
        (Budget(), 0, (20, 1)),
        (Budget(trials=30), 7, (30, 1)),
        (Budget(trials=3), 7, (7, 1)),
        (Budget(hours=2.5), 7, (20, 2.5)),
        (Budget(is_stopped=True), 7, (7, 1)),
        (Budget(is_stopped=True, trials=30), 0, (1, 1)),
    ],
)
def test_a_search_with_another_budget(budget: Budget, num_begun: int, expected: tuple[int, float]) -> None:
    """Broken: trials that have begun would be thrown away, or a stopped search would conclude nothing."""
    found = budget.of(TUNE, num_begun)
    assert (found.num_trials, found.hours) == expected


def test_all_trials_that_may_have_begun_are_looked_for() -> None:
    """Broken: after a kill, a budget that was made smaller forgets what had been found."""
    budget = Budget().changed(trials=30).changed(hours=2.0).changed(trials=4).changed(is_stopped=True)
    assert (budget.trials, budget.hours, budget.is_stopped) == (4, 2.0, True)
    assert budget.widest.of(TUNE, 20).num_trials == 30
    assert Budget(trials=1, most_trials=1).widest.of(TUNE, 20).num_trials == 20


def test_a_grid_has_no_more_trials_than_combinations() -> None:
    grid = Tune.model_validate({"space": {"epochs": {"choices": [1, 2, 3]}}, "sampler": "grid", "trials": 2})
    assert Budget(trials=100).of(grid, 2).num_trials == 3


def test_a_damaged_budget_is_named(tmp_path: Path) -> None:
    store, place = LocalStore(tmp_path), "experiments/ana/events"
    asyncio.run(Budget(trials=5).write(store, place, "manual__2026-01-01T00:00:00+00:00"))
    assert asyncio.run(Budget.read(store, place, "manual__2026-01-01T00:00:00+00:00")) == Budget(trials=5)
    assert asyncio.run(Budget.read(store, place, "another")) == Budget()
    (file,) = tmp_path.rglob("*.json")
    file.write_text("{")
    with pytest.raises(SpecError, match=f"{file.relative_to(tmp_path)} is damaged: give the study its budget again"):
        asyncio.run(Budget.read(store, place, "manual__2026-01-01T00:00:00+00:00"))


def test_a_note_names_the_last_budget_alone() -> None:
    """Broken: after many changes the note is longer than Airflow takes, and each further one is refused."""
    note = with_budget("look at this\nsearch: 30 trials at most, by ana", str(Budget(trials=9, gpu_hours=2)), "otto")
    assert note == "look at this\nsearch: 9 trials at most, 2 GPU hours, by otto"
    assert with_cancellation(note, "ana").endswith("\ncancelled by ana")
