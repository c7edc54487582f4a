"""The learner of a package that is not part of the project, installed as a user would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_model
from other_packages import installed, missing_on

from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.train import Train
from mlops.serving.package import package, served_example
from mlops.testing.learners import LearnerConformance


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed("mlops-xgboost", tmp_path_factory.mktemp("site"), ["xgboost-cpu==3.2.0"]):
        yield


class TestXGBoost(LearnerConformance):
    @pytest.fixture
    def name(self) -> str:
        return "xgboost"

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"rounds_per_epoch": 3, "max_depth": 3}

    @pytest.fixture(params=["binary", "regression"])
    def objective_name(self, request: pytest.FixtureRequest) -> str:
        found: str = request.param
        return found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learner": "xgbost"}, "learner must be one of torch, lightgbm, sklearn, xgboost (did you mean 'xgboost'?)"),
        ({"learner_settings": {"max_dept": 3}}, "unknown key 'learner_settings.max_dept'; did you mean 'max_depth'?"),
        ({"learner_settings": {"max_depth": 0}}, "learner_settings.max_depth must be >= 1, got 0"),
        ({"objective": "ranking", "metric": "mrr"}, "learner xgboost learns logit, value, and the objective ranking"),
    ],
)
def test_a_mistake_is_said_where_it_stands(changes: dict[str, Any], message: str) -> None:
    section = {"learner": "xgboost", "objective": "regression", "metric": "mae", **changes}
    with pytest.raises(SpecError) as raised:
        check_section(Train, section, "train")
    assert message in str(raised.value)


def test_a_server_installs_the_package(project: Any, toy_checkpoint: Any, tmp_path: Path) -> None:
    """Broken: a model in production could not be opened where it is served."""
    settings = {"objective": "regression", "metric": "rmse", "learner_settings": {"rounds_per_epoch": 3}, "epochs": 2}
    checkpoint = toy_checkpoint(**toy_model.train_by("xgboost", settings))
    folder = package(project.store, checkpoint, served_example(project.store, checkpoint, tmp_path), tmp_path)
    assert {"mlops-xgboost==1.0", "xgboost-cpu==3.2.0"} <= set((folder / "requirements.txt").read_text().split())


def test_the_page_shows_this_package() -> None:
    files = ["pyproject.toml", "mlops_xgboost.py", "mlops_xgboost_learner.py"]
    assert missing_on("learner.md", "mlops-xgboost", files) == []
