"""The objective and the metric of a package that is not part of the project, installed as a user would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measured import measure, objective_of
from other_packages import REPOSITORY, installed, missing_on
from sklearn.metrics import mean_tweedie_deviance

from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.train import Train
from mlops.metrics.predictions import Floats, Predictions
from mlops.testing.metrics import MetricConformance
from mlops.testing.objectives import ObjectiveConformance

NAME = "mlops-tweedie"
FILES = ["pyproject.toml", "mlops_tweedie.py"]
BARE = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "polars", "matplotlib", "optuna", "mlflow"):
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Nothing())
from mlops.contract.section import check_section
from mlops.contract.sections.train import Train

train = {"model": "include.a.model:b", "objective": "tweedie", "metric": "tweedie_deviance@1.5"}
print(check_section(Train, train, "train").objective_settings)
"""


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    with installed(NAME, folder):
        yield folder


class TestTweedie(ObjectiveConformance):
    @pytest.fixture
    def name(self) -> str:
        return "tweedie"

    @pytest.fixture
    def labels(self) -> Floats:
        return np.float32([0, 0, 1.5, 20, 0])

    @pytest.fixture
    def bad_labels(self) -> Floats:
        return np.float32([-1, np.nan])


def predictions() -> Predictions:
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(90) < 0.6, 0, rng.gamma(2, 3, 90)).astype(np.float32)
    predicted = rng.gamma(3, 1, 90).astype(np.float32)
    return objective_of("regression").predictions(labels, predicted, np.arange(0, 91, 3))


class TestDeviance(MetricConformance):
    @pytest.fixture(params=["tweedie_deviance@1.5", "tweedie_deviance@1.1"])
    def name(self, request: pytest.FixtureRequest) -> str:
        found: str = request.param
        return found

    @pytest.fixture
    def predictions(self) -> Predictions:
        return predictions()

    @pytest.fixture
    def perfect(self) -> Predictions:
        found = predictions()
        better = np.maximum(found.labels, 0.01)
        return objective_of("regression").predictions(found.labels, better, found.offsets)


def test_the_deviance_equals_scikit_learn() -> None:
    found = predictions()
    expected = mean_tweedie_deviance(found.labels, found.predicted, power=1.5)
    assert measure("tweedie_deviance@1.5", found.labels, found.predicted) == pytest.approx(expected)


def train(**changes: Any) -> Train:
    settings = {"model": "include.a.model:b", "objective": "tweedie", "metric": "tweedie_deviance@1.5", **changes}
    return check_section(Train, settings, "train")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "tweedy"}, "objective must be one of ranking, binary, .*did you mean 'tweedie'?"),
        ({"objective_settings": {"powr": 1.2}}, "unknown key 'objective_settings.powr'; did you mean 'power'?"),
        ({"objective_settings": {"power": 2.5}}, "objective_settings.power must be < 2, got 2.5"),
        ({"metric": "tweedie_deviance"}, "metric must be tweedie_deviance@POWER, POWER a number above 0"),
        ({"metric": "auc"}, "metric must be measured by mae or .*tweedie_deviance@POWER, for the objective is tweedie"),
    ],
)
def test_a_mistake_is_said_where_it_stands(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        train(**changes)
    for part in message.split(".*"):
        assert part in str(raised.value)


def test_metrics_of_ours_fit_it_and_its_metric_fits_ours() -> None:
    assert train(metric="mae", metrics=["poisson_deviance"]).metrics == ["poisson_deviance"]
    assert train(objective="regression").objective_settings["loss"] == "mse"


def test_a_scheduler_needs_none_of_its_libraries(site: Path) -> None:
    """Broken: a pipeline with it could not be parsed where Airflow runs."""
    path = f"{REPOSITORY / 'training'}:{site}"
    done = subprocess.run(
        [sys.executable, "-c", BARE], capture_output=True, text=True, check=False, env={"PYTHONPATH": path}
    )
    assert done.stdout == "{'power': 1.5}\n", done.stderr


@pytest.mark.parametrize(
    ("page", "files"),
    [("objective.md", [*FILES, "mlops_tweedie_objective.py"]), ("metric.md", [*FILES, "mlops_tweedie_metric.py"])],
)
def test_the_pages_show_this_package(page: str, files: list[str]) -> None:
    assert missing_on(page, NAME, files) == []
