"""The sampler and the pruner of a package that is not part of the project, installed as a user would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import optuna
import pytest
from other_packages import installed, missing_on

from mlops.contract.samplers import PRUNERS, SamplerSpec
from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.steps import TuneStep
from mlops.contract.step import BadConfigError
from mlops.testing import no_recipe
from mlops.testing.samplers import PrunerConformance, SamplerConformance
from mlops.tuning.space import NUMBER, draw, loaded

TRAIN = {"model": "include.toy.model:build", "objective": "ranking", "metric": "ndcg@10"}


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed("mlops-gaussian-process", tmp_path_factory.mktemp("site")):
        yield


class TestGaussianProcess(SamplerConformance):
    @pytest.fixture
    def name(self) -> str:
        return "gaussian_process"


class TestPatience(PrunerConformance):
    @pytest.fixture
    def name(self) -> str:
        return "patience"


def search(**changes: Any) -> TuneStep:
    settings = {"space": {"learning_rate": {"low": 0.001, "high": 1.0}}, "train": TRAIN, **changes}
    return check_section(TuneStep, settings, "tune")


def test_its_sampler_learns_from_the_trials_before() -> None:
    """Towards a learning rate of 0.7: broken, if the trials were no better than chance."""
    config = search(sampler="gaussian_process", sampler_settings={"startup_trials": 4})
    study = optuna.create_study(direction="maximize")
    tried = []
    for number in range(12):
        found = draw(study, config, number, no_recipe)
        tried.append(found["learning_rate"])
        study.add_trial(
            optuna.create_trial(
                params=found,
                distributions={"learning_rate": optuna.distributions.FloatDistribution(0.001, 1.0)},
                value=-((tried[-1] - 0.7) ** 2),
                user_attrs={NUMBER: number},
            )
        )
    assert all(abs(rate - 0.7) < 0.1 for rate in tried[-4:]), tried
    assert draw(study, config, 12, no_recipe) == draw(study, config, 12, no_recipe), "the same at a retry"


def test_its_pruner_ends_what_no_longer_gets_better() -> None:
    config = search(pruner="patience", pruner_settings={"epochs": 2})
    pruner = loaded(PRUNERS, config.pruner, config.pruner_settings, no_recipe)(10)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    trial, pruned = study.ask(), []
    for epoch, value in enumerate([0.1, 0.5, 0.4, 0.4, 0.4], start=1):
        trial.report(value, epoch)
        pruned.append(trial.should_prune())
    assert pruned[0] is False
    assert pruned[-1] is True


def test_settings_are_kept_with_their_defaults() -> None:
    config = search(sampler="gaussian_process", pruner="patience")
    assert config.sampler_settings == {"startup_trials": 10}
    assert config.pruner_settings == {"epochs": 3}
    assert search().sampler_settings == {"startup_trials": 10, "multivariate": False}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": "gaussian"}, "sampler must be one of tpe, random, grid, gaussian_process"),
        ({"sampler": "gaussian_process", "sampler_settings": {"startup": 1}}, "did you mean 'startup_trials'?"),
        ({"sampler": "gaussian_process", "sampler_settings": {"startup_trials": 0}}, "must be >= 1, got 0"),
        ({"pruner": "patience", "pruner_settings": {"epoch": 1}}, "did you mean 'epochs'?"),
        ({"sampler": "random", "sampler_settings": {"a": 1}}, "'sampler_settings.a'; there is nothing to set"),
    ],
)
def test_a_mistake_is_said_where_it_stands(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        search(**changes)
    assert message in str(raised.value)


def test_something_else_by_its_import_path_is_refused() -> None:
    with pytest.raises(BadConfigError, match="pruner 'include.a.b:C' is a SamplerSpec, no PrunerSpec"):
        loaded(PRUNERS, "include.a.b:C", {}, lambda path: SamplerSpec(make=None))


def test_the_page_shows_this_package() -> None:
    files = ["pyproject.toml", "mlops_gaussian_process.py"]
    assert missing_on("sampler.md", "mlops-gaussian-process", files) == []
