"""
What every sampler and every pruner must do.

A test module makes a subclass of :class:`SamplerConformance` or :class:`PrunerConformance` and gives the fixtures
that it names::

    class TestMySampler(SamplerConformance):
        @pytest.fixture
        def name(self):
            return "my_sampler"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from mlops.contract.samplers import PRUNERS, SAMPLERS
from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.steps import TuneStep
from mlops.testing import no_recipe
from mlops.tuning.space import NUMBER, distributions, draw, loaded

SPACE: Mapping[str, Any] = {
    "learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
    "global_batch": {"choices": [8, 16, 32]},
    "schedule.warmup_steps": {"low": 0, "high": 100, "step": 10},
}
EPOCHS = 8


def search(**settings: Any) -> TuneStep:
    train = {"model": "include.a.model:build", "objective": "ranking", "metric": "ndcg@10", "epochs": EPOCHS}
    return check_section(TuneStep, {"space": SPACE, "trials": 9, "train": train, **settings}, "tune")


class SamplerConformance:
    """Tests of a sampler. Fixtures: ``name``; ``settings``, none by default."""

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {}

    @pytest.fixture
    def config(self, name: str, settings: Mapping[str, Any]) -> TuneStep:
        return search(sampler=name, sampler_settings=settings)

    def _study(self, config: TuneStep, num_trials: int) -> optuna.Study:
        """Return a study whose trials ended in all the ways that there are."""
        study = optuna.create_study(direction="maximize")
        states = [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL]
        for number in range(num_trials):
            state = states[number % len(states)]
            study.add_trial(
                create_trial(
                    state=state,
                    params=draw(study, config, number, no_recipe),
                    distributions=distributions(config.space),
                    value=number % 5 / 10 if state is TrialState.COMPLETE else None,
                    intermediate_values={1: 0.1},
                    user_attrs={NUMBER: number},
                )
            )
        return study

    def test_values_are_of_the_space(self, config: TuneStep) -> None:
        """From the first trial on, when there is nothing to learn from, and after trials that failed."""
        study = self._study(config, 14)
        for trial in study.trials:
            assert 1e-5 <= trial.params["learning_rate"] <= 1e-1
            assert trial.params["global_batch"] in (8, 16, 32)
            assert isinstance(trial.params["schedule.warmup_steps"], int)
            assert trial.params["schedule.warmup_steps"] % 10 == 0

    def test_a_retry_draws_the_same(self, config: TuneStep) -> None:
        """Broken: a trial that was killed would go on with other settings from its checkpoint."""
        study = self._study(config, 12)
        assert draw(study, config, 12, no_recipe) == draw(study, config, 12, no_recipe)
        assert not study.trials[-1].params or len(study.trials) == 12, "nothing is stored by drawing"

    def test_trials_differ(self, config: TuneStep) -> None:
        study = self._study(config, 12)
        assert len({trial.params["learning_rate"] for trial in study.trials}) > 6

    def test_settings_are_checked_when_a_pipeline_is_parsed(self, name: str, settings: Mapping[str, Any]) -> None:
        with pytest.raises(SpecError, match=r"unknown key 'sampler_settings\.no_such_setting'"):
            search(sampler=name, sampler_settings={**settings, "no_such_setting": 1})
        assert SAMPLERS.load(name).section.model_validate(search(sampler=name).sampler_settings)


class PrunerConformance:
    """Tests of a pruner. Fixtures: ``name``; ``settings``, none by default."""

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {}

    @pytest.fixture
    def study(self, name: str, settings: Mapping[str, Any]) -> optuna.Study:
        config = search(pruner=name, pruner_settings=settings)
        pruner = loaded(PRUNERS, config.pruner, config.pruner_settings, no_recipe)(EPOCHS)
        return optuna.create_study(direction="maximize", pruner=pruner)

    def _run(self, study: optuna.Study, values: list[float]) -> int:
        """Report a trial's metric after each epoch, and return the number of epochs that it has had."""
        trial = study.ask()
        for epoch, value in enumerate(values, start=1):
            trial.report(value, epoch)
            if trial.should_prune():
                study.tell(trial, state=TrialState.PRUNED)
                return epoch
        study.tell(trial, values[-1])
        return len(values)

    def test_a_trial_alone_that_gets_better_comes_to_its_end(self, study: optuna.Study) -> None:
        """Broken: a study would have no complete trial to choose from."""
        assert self._run(study, [0.1 * epoch for epoch in range(1, EPOCHS + 1)]) == EPOCHS

    def test_the_best_of_many_comes_to_its_end(self, study: optuna.Study) -> None:
        for number in range(12):
            self._run(study, [0.01 * number + 0.001 * epoch for epoch in range(1, EPOCHS + 1)])
        assert self._run(study, [0.9 + 0.01 * epoch for epoch in range(1, EPOCHS + 1)]) == EPOCHS

    def test_settings_are_checked_when_a_pipeline_is_parsed(self, name: str, settings: Mapping[str, Any]) -> None:
        with pytest.raises(SpecError, match=r"unknown key 'pruner_settings\.no_such_setting'"):
            search(pruner=name, pruner_settings={**settings, "no_such_setting": 1})
