"""Our own objectives for rows, by the suite that others run on theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlops.metrics.predictions import Floats
from mlops.testing.objectives import ObjectiveConformance


class TestRanking(ObjectiveConformance):
    @pytest.fixture
    def name(self) -> str:
        return "ranking"

    @pytest.fixture
    def labels(self) -> Floats:
        return np.float32([0, 1, 2, 4, 0])

    @pytest.fixture
    def bad_labels(self) -> Floats:
        return np.float32([-1, 100, np.nan])


class TestBinary(ObjectiveConformance):
    @pytest.fixture
    def name(self) -> str:
        return "binary"

    @pytest.fixture
    def labels(self) -> Floats:
        return np.float32([0, 1, 1, 0, 1])

    @pytest.fixture
    def bad_labels(self) -> Floats:
        return np.float32([-1, 2, 0.5, np.nan])


class TestMulticlass(ObjectiveConformance):
    @pytest.fixture
    def name(self) -> str:
        return "multiclass"

    @pytest.fixture(params=[["setosa", "versicolor", "virginica"], 10, 2], ids=["names", "number", "two"])
    def settings(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        return {"classes": request.param}

    @pytest.fixture
    def labels(self, settings: dict[str, Any]) -> Floats:
        return np.float32([0, 1, 1, 0] if settings["classes"] == 2 else [0, 2, 1, 1, 2])

    @pytest.fixture
    def bad_labels(self) -> Floats:
        return np.float32([-1, 10, 0.5, np.nan])


class TestMultilabel(ObjectiveConformance):
    @pytest.fixture
    def name(self) -> str:
        return "multilabel"

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"labels": ["sport", "politics", "weather"]}

    @pytest.fixture
    def labels(self) -> Floats:
        return np.float32([[0, 1, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 1]])

    @pytest.fixture
    def bad_labels(self) -> Floats:
        return np.float32([[0, 0, -1], [2, 0, 0], [0, 0.5, 0], [np.nan, 0, 0]])


class TestRegression(ObjectiveConformance):
    @pytest.fixture
    def name(self) -> str:
        return "regression"

    @pytest.fixture(
        params=[
            {},
            {"loss": "mae"},
            {"loss": "huber", "delta": 0.5},
            {"loss": "poisson"},
            {"loss": "quantile", "quantiles": [0.1, 0.5, 0.9]},
            {"loss": "quantile", "quantiles": [0.5]},
        ],
        ids=["mse", "mae", "huber", "poisson", "quantiles", "median"],
    )
    def settings(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        found: dict[str, Any] = request.param
        return found

    @pytest.fixture
    def labels(self) -> Floats:
        return np.float32([0, 3, 1, 7, 2])

    @pytest.fixture
    def bad_labels(self, settings: dict[str, Any]) -> Floats:
        return np.float32([np.nan, np.inf, -1] if settings.get("loss") == "poisson" else [np.nan, np.inf])
