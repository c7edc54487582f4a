from __future__ import annotations

import numpy as np
import pytest

from training.evaluation.gate import bootstrap, decide
from training.trainer.metrics import ndcg


@pytest.mark.parametrize(
    ("candidate", "champion", "passed"),
    [
        (0.7, None, True),
        (0.8039, 0.8, False),
        (0.80401, 0.8, True),
        (0.79, 0.8, False),
        (0.8, 0.8, False),
        (0.1, 0.0, True),
    ],
    ids=["no champion", "below the margin", "above the margin", "worse", "equal", "champion at zero"],
)
def test_the_gate_asks_for_more_than_the_margin(candidate: float, champion: float | None, passed: bool) -> None:
    verdict = decide(
        metric="ndcg@10", candidate=candidate, champion=champion, champion_version="3", min_improvement=0.005
    )
    assert verdict.passed is passed
    assert f"{candidate:.4f}" in verdict.reason


def test_a_champion_that_knows_the_held_out_days_is_pointed_out() -> None:
    """An old night run again is judged against a model that was trained on its test days."""
    arguments = {"metric": "auc", "candidate": 0.7, "champion": 0.8, "champion_version": "9", "min_improvement": 0.0}
    assert "trained on 4 of the held-out days" in decide(**arguments, days_seen=4).reason
    assert "held-out days" not in decide(**arguments).reason


@pytest.mark.parametrize("metric", ["ndcg@10", "auc"])
def test_the_interval_tells_a_real_improvement_from_noise(metric: str) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 3000).astype(np.float64)
    offsets = np.arange(0, 3001, 10)
    informed, other = labels + rng.normal(size=3000), labels * 0.5 + rng.normal(size=3000)
    difference = bootstrap(metric, labels, offsets, informed, other)["difference"]
    assert 0 < difference.low < difference.value < difference.high
    same = labels + rng.normal(size=3000)
    noise = bootstrap(metric, labels, offsets, informed, same)["difference"]
    assert noise.low < 0 < noise.high


def test_the_bootstrap_is_paired() -> None:
    """Broken: two equal models would seem to differ."""
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 300).astype(float), rng.normal(size=300)
    difference = bootstrap("auc", labels, np.arange(301), scores, scores)["difference"]
    assert (difference.low, difference.value, difference.high) == (0, 0, 0)


def test_the_standard_error_is_that_of_the_mean() -> None:
    """Against the textbook formula, s / sqrt(n), for the mean of the per-query values."""
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 5, 4000).astype(float), rng.normal(size=4000)
    offsets = np.arange(0, 4001, 8)
    values = ndcg(labels, scores, offsets, 10)
    interval = bootstrap("ndcg@10", labels, offsets, scores, None)["candidate"]
    expected = 2 * 1.96 * values.std(ddof=1) / np.sqrt(len(values))
    assert interval.high - interval.low == pytest.approx(expected, rel=0.1)
