"""How the trials of a search begin, while somebody changes what it may cost; the trials themselves are scripted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from mlops.contract.sections.tune import Tune
from mlops_provider.experiments.budget import Budget
from mlops_provider.experiments.line import Line, _NotBegunError


@dataclass(frozen=True)
class Searching:
    """An experiment, as far as its trials need it."""

    search: Tune

    def with_budget(self, budget: Budget, num_begun: int) -> Searching:
        return replace(self, search=budget.of(self.search, num_begun))


@dataclass
class Search:
    """A search whose trials do what the test says."""

    trials: int
    parallel: int = 2
    budget: Budget = field(default_factory=Budget)
    begun: list[int] = field(default_factory=list)

    def run(self, trial: Callable[[int], Exception | None], monkeypatch: pytest.MonkeyPatch) -> Line:
        def begins(_: Line, number: int, __: Any) -> Exception | None:
            self.begun.append(number)
            return trial(number)

        monkeypatch.setattr(Line, "_trial", begins)
        monkeypatch.setattr(Line, "_budget", lambda *_: self.budget)
        monkeypatch.setattr(Line, "_last_trial", lambda *_: -1)
        tune = Tune.model_validate({"space": {"epochs": {"low": 1, "high": 9}}, "trials": self.trials, "hours": 1})
        experiment = Searching(tune.model_copy(update={"parallel": self.parallel}))
        line = Line(experiment=cast(Any, experiment), deployment=cast(Any, None), listener=cast(Any, _Silent()))
        line._trials(cast(Any, None))
        return line


class _Silent:
    def line(self, what: str, line: str) -> None:
        pass


def test_a_trial_that_an_earlier_budget_put_off_begins_under_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: it never begins, and the search counts as one of as many trials as it should have had."""
    search, raised = Search(trials=3), threading.Event()

    def trial(number: int) -> Exception | None:
        if number == 1 and search.begun.count(1) == 1:
            raised.wait(30)  # it has looked at the budget before, and says so after it was raised
            return _NotBegunError()
        if number == 0:
            search.budget = Budget(hours=10)
        if number == 2:
            raised.set()
        return None

    search.run(trial, monkeypatch)
    assert sorted(search.begun) == [0, 1, 1, 2]


def test_what_the_budget_puts_off_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: the search would go round for ever."""
    search = Search(trials=5)
    search.run(lambda number: None if number < 2 else _NotBegunError(), monkeypatch)
    assert sorted(search.begun) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_search_grows_and_is_stopped(monkeypatch: pytest.MonkeyPatch, parallel: int) -> None:
    search = Search(trials=2, parallel=parallel)

    def trial(number: int) -> Exception | None:
        search.budget = Budget(is_stopped=True, trials=50) if number >= 9 else Budget(trials=50)
        return None

    line = search.run(trial, monkeypatch)
    assert sorted(search.begun) == list(range(len(search.begun)))
    assert 10 <= len(search.begun) <= 10 + 2 * parallel
    assert line.experiment.search.num_trials == len(search.begun), "what it concludes"


def test_one_trial_that_ends_well_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    Search(trials=4).run(lambda number: None if number == 3 else ValueError("it diverged"), monkeypatch)
    with pytest.raises(ValueError, match="it diverged"):
        Search(trials=4).run(lambda _: ValueError("it diverged"), monkeypatch)
