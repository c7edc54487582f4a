"""Our own learners of rows, by the suite that others run on theirs."""

from __future__ import annotations

from typing import Any

import pytest

from mlops.testing.learners import LearnerConformance

SMALL = {"rounds_per_epoch": 3, "num_leaves": 7}


class TestLightGbm(LearnerConformance):
    @pytest.fixture
    def name(self) -> str:
        return "lightgbm"

    @pytest.fixture(params=[{}, {"bagging_fraction": 0.7, "feature_fraction": 0.7}], ids=["all", "parts"])
    def settings(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        return {**SMALL, **request.param}

    @pytest.fixture(
        params=[
            ("binary", {}),
            ("ranking", {}),
            ("regression", {}),
            ("regression", {"loss": "mae"}),
            ("regression", {"loss": "huber"}),
            ("regression", {"loss": "poisson"}),
            ("regression", {"loss": "quantile", "quantiles": [0.1, 0.5, 0.9]}),
        ],
        ids=["binary", "ranking", "mse", "mae", "huber", "poisson", "quantiles"],
    )
    def asked(self, request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
        found: tuple[str, dict[str, Any]] = request.param
        return found

    @pytest.fixture
    def objective_name(self, asked: tuple[str, dict[str, Any]]) -> str:
        return asked[0]

    @pytest.fixture
    def objective_settings(self, asked: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        return asked[1]
