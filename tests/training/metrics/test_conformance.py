"""Our own metrics, by the suite that others run on theirs."""

from __future__ import annotations

import numpy as np
import pytest
from measured import objective_of

from mlops.contract.metrics import METRICS, spec_of
from mlops.metrics.predictions import Predictions
from mlops.testing.metrics import MetricConformance

QUANTILES = [0.1, 0.5, 0.9]
NAMES = [{"ndcg": "ndcg@3", "top_k_accuracy": "top_k_accuracy@2"}.get(name, name) for name in METRICS.builtin]
CASES = [
    (name, kind)
    for name in NAMES
    for number, kind in enumerate(spec_of(name).measures)
    if not number or kind in ("classes", "labels")
]


class TestMetrics(MetricConformance):
    """Of 60 samples of three rows each."""

    @pytest.fixture(params=CASES, ids="-".join)
    def case(self, request: pytest.FixtureRequest) -> tuple[str, str]:
        found: tuple[str, str] = request.param
        return found

    @pytest.fixture
    def name(self, case: tuple[str, str]) -> str:
        return case[0]

    @pytest.fixture
    def tolerance(self, name: str) -> float:
        # Its bins are those of the rows before they were drawn.
        return 0.5 if name == "calibration_error" else 1e-6

    def _predictions(self, case: tuple[str, str], noise: float) -> Predictions:
        rng, offsets = np.random.default_rng(0), np.arange(0, 181, 3)
        match case[1]:
            case "classes":
                labels = rng.integers(0, 4, 180).astype(np.float32)
                logits = 3 * np.eye(4)[labels.astype(int)] + noise * rng.normal(size=(180, 4))
                return objective_of("multiclass", classes=4).predictions(labels, logits.astype(np.float32), offsets)
            case "labels":
                labels = rng.integers(0, 2, (180, 3)).astype(np.float32)
                logits = 6 * labels - 3 + noise * rng.normal(size=(180, 3))
                objective = objective_of("multilabel", labels=["a", "b", "c"])
                return objective.predictions(labels, logits.astype(np.float32), offsets)
            case "relevance" | "logit":
                labels = rng.integers(0, 2, 180).astype(np.float32)
                return objective_of("ranking").predictions(
                    labels, (6 * labels - 3 + noise * rng.normal(size=180)).astype(np.float32), offsets
                )
            case "token_loss":
                tokens = rng.integers(1, 50, 180).astype(np.float32)
                return objective_of("language_model").predictions(tokens, tokens * np.float32(0.1 + noise), offsets)
            case "quantiles":
                objective = objective_of("regression", loss="quantile", quantiles=QUANTILES)
                labels = rng.normal(size=180).astype(np.float32)
                spread = np.quantile(labels, QUANTILES)[None] * np.ones((180, 1)) + noise
                return objective.predictions(labels, spread.astype(np.float32), offsets)
            case _:
                labels = rng.poisson(3, 180).astype(np.float32)
                predicted = np.maximum(labels + noise * rng.normal(size=180), 0.05)
                return objective_of("regression").predictions(labels, predicted.astype(np.float32), offsets)

    @pytest.fixture
    def predictions(self, case: tuple[str, str]) -> Predictions:
        return self._predictions(case, 4.0)

    @pytest.fixture
    def perfect(self, case: tuple[str, str]) -> Predictions:
        return self._predictions(case, 0.1)
