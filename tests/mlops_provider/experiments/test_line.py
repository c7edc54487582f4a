"""How the trials of a search begin, while somebody changes what it may cost; the trials themselves are scripted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mlops.contract.outages import MLFLOW
from mlops.contract.sections.tune import Tune
from mlops.contract.step import OUTAGE, Failure
from mlops_provider.exceptions import StepFailedError, StepOutageError
from mlops_provider.experiments.budget import Budget
from mlops_provider.experiments.line import Line, _NotBegunError
from mlops_provider.launchers.base import Outcome


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
    last: int = -1
    """The last trial that an earlier try has begun."""

    def run(self, trial: Callable[[int], Exception | None], monkeypatch: pytest.MonkeyPatch) -> Line:
        def begins(_: Line, number: int, __: Any) -> Exception | None:
            self.begun.append(number)
            return trial(number)

        monkeypatch.setattr(Line, "_trial", begins)
        monkeypatch.setattr(Line, "_budget", lambda *_: self.budget)
        monkeypatch.setattr(Line, "_last_trial", lambda *_: self.last)
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


def test_a_search_that_is_stopped_in_its_second_try_keeps_the_trials_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Broken: the best of the few that were found again by then would be the result."""
    search = Search(trials=20, parallel=1, last=9)

    def trial(number: int) -> Exception | None:
        if number == 2:
            search.budget = Budget(is_stopped=True)
        return None

    line = search.run(trial, monkeypatch)
    assert search.begun == list(range(10)), "these are found: they have ended, or go on"
    assert line.experiment.search.num_trials == 10, "what it concludes"


def test_one_trial_that_ends_well_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    Search(trials=4).run(lambda number: None if number == 3 else ValueError("it diverged"), monkeypatch)
    with pytest.raises(ValueError, match="it diverged"):
        Search(trials=4).run(lambda _: ValueError("it diverged"), monkeypatch)


@dataclass
class Trials:
    """A line whose trials' processes end as the test says; Airflow tries a task three times."""

    outcomes: list[Outcome]
    said: list[str] = field(default_factory=list)

    def line(self, monkeypatch: pytest.MonkeyPatch) -> Line:
        operator = SimpleNamespace(
            retries=2,
            retry_delay=timedelta(milliseconds=1),
            max_retry_delay=timedelta(minutes=1),
            retry_exponential_backoff=2.0,
        )
        monkeypatch.setattr(Line, "_trial_operator", lambda *_: operator)
        monkeypatch.setattr(Line, "_run", lambda *_: self.outcomes.pop(0))
        told = SimpleNamespace(line=self._tell, failed=self._tell, ended=lambda what, _: self.said.append(what))
        return Line(experiment=cast(Any, None), deployment=cast(Any, None), listener=cast(Any, told))

    def _tell(self, what: str, line: str) -> None:
        self.said.append(f"{what}: {line}")


LOST = Outcome(result=None, status="killed by SIGKILL")
MAY_PASS = Outcome(result=Failure("OSError", "the disk is full", True, {}), status="exited with code 1")
FOR_GOOD = Outcome(result=Failure("BadDataError", "it is empty", False, {}), status="exited with code 1")
DONE = Outcome(result=cast(Any, SimpleNamespace()), status="exited with code 0")
AWAY = Outcome(result=Failure("OutageError", "nobody answers", True, {OUTAGE: MLFLOW}), status="exited with code 1")


def test_a_trial_that_is_lost_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: the search concludes without it, and the best settings may be those of a worse trial."""
    trials = Trials([LOST, MAY_PASS, DONE])
    assert trials.line(monkeypatch)._trial(7, cast(Any, None)) is None
    assert trials.said == [
        "trial 7: trial 7 ended without a result: killed by SIGKILL; what is committed stays; it is tried again in 0 s",
        "trial 7: trial 7: the disk is full; it is tried again in 0 s",
        "trial 7",
    ]


@pytest.mark.parametrize(("outcomes", "tries"), [([LOST] * 9, 3), ([MAY_PASS, FOR_GOOD, DONE], 2), ([AWAY, DONE], 1)])
def test_a_trial_is_tried_as_often_as_a_night_tries_it(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[Outcome], tries: int
) -> None:
    trials = Trials(list(outcomes))
    assert trials.line(monkeypatch)._trial(0, cast(Any, None)) is not None
    assert len(outcomes) - len(trials.outcomes) == tries


def test_a_trial_is_not_tried_again_where_the_run_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials([LOST, DONE])
    line = trials.line(monkeypatch)
    line.stop()
    assert line._trial(0, cast(Any, None)) is not None
    assert trials.said == ["trial 0: trial 0 ended without a result: killed by SIGKILL; what is committed stays"]


def test_a_search_does_not_conclude_without_what_an_outage_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: the best of those that were quick enough passes for the best of all."""
    search = Search(trials=20, parallel=2)

    def trial(number: int) -> Exception | None:
        return StepOutageError("nobody answers", MLFLOW) if number == 3 else StepFailedError("it diverged")

    with pytest.raises(StepOutageError):
        search.run(trial, monkeypatch)
    assert max(search.begun) <= 5, "none begins that cannot end"


@dataclass(eq=False)
class _Slow:
    """A launcher whose cancel takes its time; ``ended`` collects those that have done it."""

    seconds: float
    ended: list[_Slow]

    def cancel(self) -> None:
        time.sleep(self.seconds)
        self.ended.append(self)


def test_all_that_runs_is_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: Airflow kills the task after 5 s, and of several Jobs only the first are removed: the others work on."""
    monkeypatch.setattr("mlops_provider.experiments.line._STOP_SECONDS", 2.0)
    line = Line(experiment=cast(Any, None), deployment=cast(Any, None), listener=cast(Any, _Silent()))
    ended: list[_Slow] = []
    line._running |= cast(Any, {_Slow(0.5, ended) for _ in range(8)} | {_Slow(60.0, ended)})
    begin = time.monotonic()
    line.stop()
    assert time.monotonic() - begin < 3.5
    assert len(ended) == 8
