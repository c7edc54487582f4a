"""
What every metric must do.

A test module of a metric makes a subclass of :class:`MetricConformance` and gives the fixtures that it names::

    class TestMyMetric(MetricConformance):
        @pytest.fixture
        def name(self):
            return "my_metric@5"

        @pytest.fixture
        def predictions(self):
            return Predictions(labels=..., predicted=..., offsets=..., settings=...)
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mlops.metrics.metric import Metric, load_metric
from mlops.metrics.predictions import Predictions
from mlops.testing import no_recipe


class MetricConformance:
    """
    Tests of a metric. Fixtures: ``name``, as a pipeline has it; ``predictions``, of at least eight samples, on which it
    is defined, imperfect ones; ``perfect``, better ones for the same labels, none by default; ``tolerance``, of what
    weights and repeated samples may differ by, relative.
    """

    @pytest.fixture
    def perfect(self) -> Predictions | None:
        return None

    @pytest.fixture
    def tolerance(self) -> float:
        return 1e-6

    @pytest.fixture
    def metric(self, name: str) -> Metric:
        return load_metric(name, no_recipe)

    def test_it_has_a_name_for_people(self, metric: Metric) -> None:
        assert metric.title.strip()
        assert metric.spec.measures

    def test_weights_count_samples_as_often(self, metric: Metric, predictions: Predictions, tolerance: float) -> None:
        """Broken: the bootstrap would resample something else than it says."""
        counts = np.random.default_rng(0).integers(0, 4, predictions.num_samples)
        drawn = metric.measure(predictions.take(np.repeat(np.arange(len(counts)), counts)))
        weighted = metric.weighted(predictions)
        found = metric.values(weighted, counts[None].astype(np.float64))[0]
        assert found == pytest.approx(drawn, rel=tolerance, abs=1e-9)

    def test_weightings_do_not_depend_on_each_other(self, metric: Metric, predictions: Predictions) -> None:
        weights = np.random.default_rng(1).integers(0, 4, (5, predictions.num_samples)).astype(np.float64)
        weighted = metric.weighted(predictions)
        together = metric.values(weighted, weights)
        alone = [metric.values(weighted, each[None])[0] for each in weights]
        np.testing.assert_allclose(together, alone, rtol=1e-9)

    def test_the_size_of_weights_says_nothing(self, metric: Metric, predictions: Predictions) -> None:
        weighted, ones = metric.weighted(predictions), np.ones((1, predictions.num_samples))
        np.testing.assert_allclose(metric.values(weighted, 2 * ones), metric.values(weighted, ones), rtol=1e-9)

    def test_the_order_of_samples_says_nothing(self, metric: Metric, predictions: Predictions) -> None:
        shuffled = predictions.take(np.random.default_rng(2).permutation(predictions.num_samples))
        assert metric.measure(shuffled) == pytest.approx(metric.measure(predictions), rel=1e-9)

    def test_nothing_drawn_is_not_defined(self, metric: Metric, predictions: Predictions) -> None:
        weighted = metric.weighted(predictions)
        if weighted.slow:
            pytest.skip("it is computed from the rows, of which there are none")
        assert np.isnan(metric.values(weighted, np.zeros((1, predictions.num_samples)))[0])

    def test_the_same_predictions_give_the_same_value(self, metric: Metric, predictions: Predictions) -> None:
        copy = dataclasses.replace(predictions, predicted=predictions.predicted.copy())
        assert metric.measure(copy) == metric.measure(predictions)

    def test_it_knows_which_way_is_better(
        self, metric: Metric, predictions: Predictions, perfect: Predictions | None
    ) -> None:
        """Broken: the worst epoch would go to production."""
        if perfect is None:
            pytest.skip("no better predictions are given")
        assert metric.direction * metric.measure(perfect) > metric.direction * metric.measure(predictions)
