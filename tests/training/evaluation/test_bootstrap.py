from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from measured import metric_of, predictions_of

from mlops.contract.metrics import MetricSpec
from mlops.evaluation.bootstrap import FEWER_RESAMPLES, Estimate, estimate
from mlops.metrics.binary import auc
from mlops.metrics.metric import Metric
from mlops.metrics.ranking import ndcg
from mlops.metrics.weighted import over_drawn_rows


def estimated(metric: str, labels: Any, offsets: Any, *scores: Any, resamples: int = 1000) -> Estimate:
    models = [predictions_of(labels, each, offsets) for each in scores]
    return estimate(metric_of(metric), *models, resamples=resamples)


METRICS = ["ndcg@10", "mrr", "auc", "log_loss", "f1", "calibration_error", "perplexity"]


@pytest.mark.parametrize("metric", METRICS)
def test_the_bootstrap_is_paired(metric: str) -> None:
    """Broken: two equal models would seem to differ."""
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 300).astype(float), rng.normal(size=300)
    difference = estimated(metric, labels, np.arange(0, 301, 5), scores, scores).difference
    assert difference is not None
    assert (difference.low, difference.value, difference.high) == (0, 0, 0)


@pytest.mark.parametrize("metric", ["ndcg@10", "auc", "log_loss"])
def test_a_real_improvement_is_told_from_noise(metric: str) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 3000).astype(np.float64)
    offsets = np.arange(0, 3001, 10)
    informed, other = 2 * labels - 1 + rng.normal(size=3000), labels - 0.5 + rng.normal(size=3000)
    assert estimated(metric, labels, offsets, informed, other).lowest_gain(0.95) > 0
    same = 2 * labels - 1 + rng.normal(size=3000)
    noise = estimated(metric, labels, offsets, informed, same)
    assert noise.lowest_gain(0.95) < 0 < noise.lowest_gain(0.05)


def test_the_standard_error_is_that_of_the_mean() -> None:
    """Against the textbook formula, s / sqrt(n), for the mean of the per-query values."""
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 5, 4000).astype(float), rng.normal(size=4000)
    offsets = np.arange(0, 4001, 8)
    values = ndcg(labels, scores, offsets, 10)
    interval = estimated("ndcg@10", labels, offsets, scores).candidate
    expected = 2 * 1.96 * values.std(ddof=1) / np.sqrt(len(values))
    assert interval.high - interval.low == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("metric", ["ndcg@5", "auc", "log_loss"])
def test_the_bound_is_missed_as_often_as_it_says(metric: str) -> None:
    """
    Two models of equal worth on 200 hold-outs: at 90% the bound must be above 0 in one of ten. Broken: models would be
    promoted by luck of the hold-out.
    """
    rng = np.random.default_rng(1)
    above = 0
    for _ in range(200):
        labels = rng.integers(0, 2, 400).astype(float)
        shared = 2 * labels - 1 + rng.normal(size=400)
        first, second = shared + rng.normal(size=400), shared + rng.normal(size=400)
        found = estimated(metric, labels, np.arange(0, 401, 5), first, second, resamples=200)
        above += found.lowest_gain(0.9) > 0
    # Binomial(200, 0.1): 20, with a standard deviation of 4.2.
    assert 8 <= above <= 33


def test_dependent_rows_are_drawn_together() -> None:
    """Broken: rows that say the same ten times over would make the interval three times too narrow."""
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 200).astype(float), rng.normal(size=200)
    alone = estimated("auc", labels, np.arange(201), scores).candidate
    tenfold = estimated("auc", np.repeat(labels, 10), np.arange(0, 2001, 10), np.repeat(scores, 10)).candidate
    assert tenfold == alone


def test_a_function_of_the_recipe_gets_the_same_draws() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 300).astype(float)
    candidate, champion = labels + rng.normal(size=300), rng.normal(size=300)
    offsets = np.arange(301)
    ours = estimated("auc", labels, offsets, candidate, champion, resamples=200)
    spec = MetricSpec(
        measures=("logit",),
        higher_is_better=True,
        title="mine",
        weighted=lambda predictions, _: over_drawn_rows(lambda labels, scores, _: auc(labels, scores), predictions),
    )
    mine = Metric(name="mine", spec=spec, parameter=None, function=spec.weighted)
    models = [predictions_of(labels, each, offsets) for each in (candidate, champion)]
    own = estimate(mine, *models)
    assert (own.metric, len(own.gains)) == ("mine", FEWER_RESAMPLES)
    assert own.candidate.value == ours.candidate.value
    np.testing.assert_allclose(own.gains, ours.gains, atol=1e-12)


def test_the_same_scores_give_the_same_interval_again() -> None:
    """Broken: a retry could come to another verdict."""
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 300).astype(float), rng.normal(size=300)
    first, again = (estimated("auc", labels, np.arange(301), scores, scores[::-1].copy()) for _ in range(2))
    assert (first.difference, first.gains.tolist()) == (again.difference, again.gains.tolist())
