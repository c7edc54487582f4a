from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from measured import metric_of, predictions_of
from pydantic import TypeAdapter

from mlops.contract.rules import AnyRule
from mlops.contract.section import Section
from mlops.contract.step import BadConfigError
from mlops.evaluation import rules as gate
from mlops.evaluation.bias import GroupDifference
from mlops.evaluation.bootstrap import Estimate, Interval, estimate
from mlops.evaluation.serving_benchmark import ServingBenchmark
from mlops.evaluation.slice_metrics import Slice
from mlops.evaluation.verdict import Measured, Verdict
from mlops.testing import no_recipe

rule_of = TypeAdapter(AnyRule).validate_python


def judge(rules: Sequence[Section], data: Measured, **more: Any) -> Verdict:
    return gate.judge(rules, data, no_recipe, **more)


IMPROVEMENT = {"improvement": 0.005, "metric": None, "confidence": 0.95, "min_samples": 30, "seed_noise": None}


def estimated(candidate: float, champion: float | None, error: float = 0.0, metric: str = "auc") -> Estimate:
    """A metric with a normal error of the difference."""

    def interval(value: float) -> Interval:
        return Interval(value=value, low=value - 2 * error, high=value + 2 * error)

    if champion is None:
        return Estimate(
            metric=metric, title=metric.upper(), direction=1, num_samples=1000, candidate=interval(candidate)
        )
    sign = -1 if metric == "log_loss" else 1
    noise = error * np.random.default_rng(0).normal(size=20_000)
    return Estimate(
        metric=metric,
        title=metric.upper(),
        direction=sign,
        num_samples=1000,
        candidate=interval(candidate),
        champion=interval(champion),
        difference=interval(candidate - champion),
        gains=sign * (candidate - champion) + noise,
    )


def measured(first: Estimate, **changes: Any) -> Measured:
    serving = ServingBenchmark(
        latency_p50_ms=1.0, latency_p99_ms=4.0, num_requests=9, rows_per_request=1.0, num_bytes=2_000_000,
        disturbances=[],
    )  # fmt: skip
    fields = {
        "metric": first.metric,
        "champion_version": None if first.champion is None else "3",
        "estimates": {first.metric: first},
        "slices": [],
        "groups": [],
        "serving": serving,
    }
    return Measured(**{**fields, **changes})


@pytest.mark.parametrize(
    ("candidate", "champion", "error", "passed"),
    [
        pytest.param(0.7, None, 0.0, True, id="no champion"),
        pytest.param(0.8039, 0.8, 0.0, False, id="below the margin"),
        pytest.param(0.8041, 0.8, 0.0, True, id="above the margin"),
        pytest.param(0.79, 0.8, 0.0, False, id="worse"),
        pytest.param(0.8, 0.8, 0.0, False, id="equal"),
        pytest.param(0.1, 0.0, 0.0, True, id="champion at zero"),
        pytest.param(0.81, 0.8, 0.001, True, id="surely above the margin"),
        pytest.param(0.81, 0.8, 0.005, False, id="above it, and perhaps not"),
    ],
)
def test_an_improvement_is_more_than_the_margin_and_more_than_noise(
    candidate: float, champion: float | None, error: float, passed: bool
) -> None:
    verdict = judge([rule_of(IMPROVEMENT)], measured(estimated(candidate, champion, error)))
    assert verdict.passed is passed
    assert f"{candidate:.4f}" in verdict.reason


def test_without_a_margin_equal_models_do_not_pass() -> None:
    """Broken: the same weights, registered twice, would be promoted each night."""
    assert not judge([rule_of({**IMPROVEMENT, "improvement": 0.0})], measured(estimated(0.8, 0.8))).passed


@pytest.mark.parametrize(
    ("num_queries", "irrelevant", "min_samples", "passed"),
    [
        pytest.param(1, 0, 30, False, id="one"),
        pytest.param(29, 0, 30, False, id="too few"),
        pytest.param(30, 0, 30, True, id="enough"),
        pytest.param(30, 1, 30, False, id="one of them without a relevant document"),
        pytest.param(3, 0, 3, True, id="few, and few are asked for"),
    ],
)
def test_few_samples_do_not_prove_an_improvement(
    num_queries: int, irrelevant: int, min_samples: int, passed: bool
) -> None:
    """Broken: a bootstrap of one query has no spread, so that whatever changed on it would be certain."""
    labels = np.tile([0.0, 1.0, 2.0], num_queries)
    labels[: 3 * irrelevant] = 0
    found = estimate(
        metric_of("ndcg@10"),
        *(predictions_of(labels, scores, np.arange(0, len(labels) + 1, 3)) for scores in (labels, -labels)),
    )
    verdict = judge([rule_of({**IMPROVEMENT, "min_samples": min_samples})], measured(found))
    assert verdict.passed is passed
    if not passed:
        assert f"on {num_queries - irrelevant} of the 30 samples that are asked for" in verdict.reason
        assert "Hold out more by ingest.split, or lower min_samples" in verdict.reason


def test_without_a_champion_few_samples_will_do() -> None:
    """Broken: a new pipeline with little data would never have a first version."""
    labels = np.array([0.0, 1.0])
    assert judge([rule_of(IMPROVEMENT)], measured(estimate(metric_of("auc"), predictions_of(labels, labels)))).passed


@pytest.mark.parametrize(("candidate", "passed"), [(0.45, True), (0.55, False)])
def test_of_a_loss_less_is_better(candidate: float, passed: bool) -> None:
    verdict = judge([rule_of(IMPROVEMENT)], measured(estimated(candidate, 0.5, 0.001, "log_loss")))
    assert verdict.passed is passed


@pytest.mark.parametrize(("confidence", "said"), [(0.95, "95%"), (0.975, "97.5%"), (0.9875, "98.75%"), (0.58, "58%")])
def test_the_confidence_is_told_as_it_was_given(confidence: float, said: str) -> None:
    """Broken: 97.5% would be told as 98%."""
    verdict = judge([rule_of({**IMPROVEMENT, "confidence": confidence})], measured(estimated(0.9, 0.8, 0.001)))
    assert f": with {said} confidence at least" in verdict.reason


def test_luck_of_the_seed_widens_the_interval() -> None:
    """By Student's t of as few trainings as it was found from, times the root of two for two models."""
    data = measured(estimated(0.82, 0.8, 0.0))
    for trainings, deviation, passed in ((8, 0.0050, True), (8, 0.0065, False), (100, 0.0065, True)):
        noise = {"deviation": deviation, "trainings": trainings}
        outcome = judge([rule_of({**IMPROVEMENT, "seed_noise": noise})], data).outcomes[0]
        assert outcome.passed is passed, (trainings, deviation, outcome)
    assert "another seed is allowed for" in outcome.note
    assert "no seed_noise" in judge([rule_of(IMPROVEMENT)], data).outcomes[0].note


@pytest.mark.parametrize(
    ("bounds", "passed"),
    [
        ({"at_least": 0.7, "at_most": None}, True),
        ({"at_least": 0.71, "at_most": None}, False),
        ({"at_least": None, "at_most": 0.7}, True),
        ({"at_least": None, "at_most": 0.69}, False),
        ({"at_least": 0.6, "at_most": 0.65}, False),
    ],
)
def test_a_threshold_needs_no_champion(bounds: dict[str, Any], passed: bool) -> None:
    verdict = judge([rule_of({"metric": "auc", **bounds})], measured(estimated(0.7, None)))
    assert verdict.passed is passed
    assert "0.7000" in verdict.reason


def slice_of(value: str, num_samples: int, candidate: float, error: float) -> Slice:
    return Slice(column="city", value=value, num_samples=num_samples, estimate=estimated(candidate, 0.8, error))


@pytest.mark.parametrize(
    ("slices", "passed"),
    [
        pytest.param([("A", 500, 0.70, 0.01)], False, id="clearly worse"),
        pytest.param([("A", 500, 0.79, 0.001)], True, id="worse within what is allowed"),
        pytest.param([("A", 500, 0.70, 0.1)], True, id="worse within noise"),
        pytest.param([("A", 99, 0.70, 0.01)], True, id="too small to count"),
        pytest.param([("A", 500, 0.744, 0.02), *[(f"B{i}", 500, 0.8, 0.02) for i in range(30)]], True,
                     id="the worst of many"),
        pytest.param([("A", 500, 0.744, 0.02)], False, id="the only one"),
    ],
)  # fmt: skip
def test_no_slice_may_be_clearly_worse(slices: list[tuple[str, int, float, float]], passed: bool) -> None:
    """Of thirty slices one looks as bad as the second to last case by chance."""
    rule = rule_of({"slices": 0.02, "min_samples": 100, "confidence": 0.95})
    data = measured(estimated(0.8, 0.8), slices=[slice_of(*each) for each in slices])
    verdict = judge([rule], data)
    assert verdict.passed is passed
    if not passed:
        assert "city A (500 samples" in verdict.reason


def test_latency_size_and_fairness_have_bounds() -> None:
    group = GroupDifference(
        column="origin", num_groups=3, demographic_parity=0.2, equalised_odds=0.1, unmeasured=("true positive rate",),
        champion_demographic_parity=None, champion_equalised_odds=None,
    )  # fmt: skip
    data = measured(estimated(0.7, None), groups=[group])
    for rule, passed in (
        ({"latency_p99_ms": 5.0}, True),
        ({"latency_p99_ms": 3.0}, False),
        ({"size_mb": 2.0}, True),
        ({"size_mb": 1.9}, False),
        ({"fairness": 0.15, "measure": "equalised_odds"}, True),
        ({"fairness": 0.15, "measure": "demographic_parity"}, False),
    ):
        assert judge([rule_of(rule)], data).passed is passed, rule


@pytest.mark.parametrize(
    ("known", "num_unknown", "sentence", "note"),
    [
        pytest.param([], 0, "No slice has 100 samples, so none is held", "", id="none"),
        pytest.param([], 99, "No slice has 100 samples, so none is held", "", id="too small"),
        pytest.param([], 300, "AUC can be measured on no slice of 100 samples, so none is held",
                     "on 1 of 1 slices of 100 samples, such as city B (300", id="of one class"),
        pytest.param([slice_of("A", 500, 0.8, 0.02)], 300, "None of 1 slices is clearly more",
                     "on 1 of 2 slices of 100 samples, such as city B (300", id="beside another"),
    ],
)  # fmt: skip
def test_a_slice_that_cannot_be_measured_is_told(
    known: list[Slice], num_unknown: int, sentence: str, note: str
) -> None:
    """Broken: a slice of one class would be said to be too small, however large it is."""
    unknown = [Slice(column="city", value="B", num_samples=num_unknown, estimate=None)] if num_unknown else []
    rule = rule_of({"slices": 0.02, "min_samples": 100, "confidence": 0.95})
    [outcome] = judge([rule], measured(estimated(0.8, 0.8), slices=known + unknown)).outcomes
    assert outcome.passed
    assert sentence in outcome.sentence
    assert note in outcome.note
    assert bool(note) is bool(outcome.note)


@pytest.mark.parametrize(
    ("measure", "odds", "passed", "words"),
    [
        pytest.param("equalised_odds", None, False, "of sex cannot be measured: no two groups have 10", id="unknown"),
        pytest.param("equalised_odds", 0.1, True, "No two groups of sex have enough rows for the true", id="in part"),
        pytest.param("demographic_parity", None, True, "of origin: 0.1", id="not asked for"),
    ],
)
def test_what_cannot_be_measured_is_not_fair(measure: str, odds: float | None, passed: bool, words: str) -> None:
    """Broken: groups that have no label in common would be found to be treated alike."""
    known = GroupDifference(
        column="origin", num_groups=3, demographic_parity=0.1, equalised_odds=0.1, unmeasured=(),
        champion_demographic_parity=None, champion_equalised_odds=None,
    )  # fmt: skip
    group = replace(known, column="sex", equalised_odds=odds, unmeasured=("true positive rate",))
    data = measured(estimated(0.7, None), groups=[known, group])
    [outcome] = judge([rule_of({"fairness": 0.15, "measure": measure})], data).outcomes
    assert outcome.passed is passed
    assert words in outcome.sentence + outcome.note


def test_all_rules_must_hold_and_those_that_do_not_are_told() -> None:
    rules = [rule_of(each) for each in (IMPROVEMENT, {"size_mb": 1.0}, {"latency_p99_ms": 1.0})]
    verdict = judge(rules, measured(estimated(0.9, 0.8, 0.001)))
    assert not verdict.passed
    assert [outcome.passed for outcome in verdict.outcomes] == [True, False, False]
    assert "Size" in verdict.reason
    assert "Latency" in verdict.reason
    assert "AUC" not in verdict.reason


def test_a_rule_about_what_is_not_measured_is_refused() -> None:
    with pytest.raises(BadConfigError, match="about 'profit', but measured are auc; add it to evaluate.metrics"):
        judge([rule_of({**IMPROVEMENT, "metric": "profit"})], measured(estimated(0.7, None)))


def test_a_champion_that_knows_the_held_out_days_is_pointed_out() -> None:
    """An old night run again is judged against a model that was trained on its test days."""
    rules, data = [rule_of(IMPROVEMENT)], measured(estimated(0.7, 0.8, 0.01))
    assert "trained on 4 of the held-out periods" in judge(rules, data, periods_seen=4).reason
    assert "held-out days" not in judge(rules, data).reason


def test_what_has_seen_the_held_out_days_replaces_nothing() -> None:
    verdict = judge([rule_of(IMPROVEMENT)], measured(estimated(0.9, 0.8, 0.001)), periods_started_from=2)
    assert not verdict.passed
    assert verdict.reason.startswith("The weights that the candidate started from were trained on 2 of the held-out")
