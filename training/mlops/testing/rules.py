"""
What every rule of the gate must do.

A test module of a rule makes a subclass of :class:`RuleConformance` and gives the fixtures that it names::

    class TestMyRule(RuleConformance):
        @pytest.fixture
        def rule(self):
            return {"rule": "my_rule", "worse": 0.01}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from mlops.contract.rules import AnyRule
from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.evaluate import Evaluate
from mlops.evaluation.bias import GroupDifference
from mlops.evaluation.bootstrap import Estimate, Interval
from mlops.evaluation.rules import judge
from mlops.evaluation.serving_benchmark import ServingBenchmark
from mlops.evaluation.slice_metrics import Slice
from mlops.evaluation.verdict import Measured, RuleOutcome
from mlops.testing import no_recipe


def estimate_of(metric: str, candidate: float, champion: float | None, *, error: float = 0.01) -> Estimate:
    """
    Return the estimate of a metric of which a higher value is better, on 1,000 samples.

    :param error: standard error of the difference
    """

    def interval(value: float) -> Interval:
        return Interval(value=value, low=value - 2 * error, high=value + 2 * error)

    alone = Estimate(metric=metric, title=metric, direction=1, num_samples=1000, candidate=interval(candidate))
    if champion is None:
        return alone
    gains = candidate - champion + error * np.random.default_rng(0).normal(size=1000)
    return replace(alone, champion=interval(champion), difference=interval(candidate - champion), gains=gains)


def measured_of(candidate: float, champion: float | None) -> Measured:
    """Return measurements of a model whose metrics, ``auc`` and ``f1``, and whose slices all have these values."""
    slices = [
        Slice(column="city", value=name, num_samples=500, estimate=estimate_of("auc", candidate, champion))
        for name in ("a", "b")
    ]
    group = GroupDifference(
        column="city",
        num_groups=2,
        demographic_parity=0.1,
        equalised_odds=0.1,
        unmeasured=(),
        champion_demographic_parity=None if champion is None else 0.1,
        champion_equalised_odds=None if champion is None else 0.1,
    )
    serving = ServingBenchmark(
        latency_p50_ms=1.0,
        latency_p99_ms=2.0,
        num_requests=100,
        rows_per_request=1.0,
        num_bytes=1_000_000,
        disturbances=[],
    )
    return Measured(
        metric="auc",
        champion_version=None if champion is None else "3",
        estimates={name: estimate_of(name, candidate, champion) for name in ("auc", "f1")},
        slices=slices,
        groups=[group],
        serving=serving,
    )


class RuleConformance:
    """
    Tests of a rule. Fixtures: ``rule``, the rule with its settings as a pipeline has it; ``own``, which loads code of a
    recipe by its import path, where the rule is named so.
    """

    @pytest.fixture
    def own(self) -> Callable[[str], object]:
        return no_recipe

    def _outcome(self, rule: Mapping[str, Any], measured: Measured, own: Callable[[str], object]) -> RuleOutcome:
        section = TypeAdapter(AnyRule).validate_python(rule)
        [outcome] = judge([section], measured, own).outcomes
        return outcome

    @pytest.mark.parametrize(("candidate", "champion"), [(0.9, 0.8), (0.8, 0.9), (0.8, 0.8), (0.0, 0.0), (0.8, None)])
    def test_it_decides_and_says_why(
        self, rule: Mapping[str, Any], own: Callable[[str], object], candidate: float, champion: float | None
    ) -> None:
        """Also where there is no champion yet: a pipeline's first night must come to an end."""
        outcome = self._outcome(rule, measured_of(candidate, champion), own)
        assert isinstance(outcome.passed, bool)
        assert outcome.title
        assert outcome.sentence.strip().endswith(".")
        numbers = [outcome.value, outcome.low, outcome.high, outcome.threshold]
        assert all(number is None or math.isfinite(number) for number in numbers)

    def test_the_same_measurements_are_judged_alike(
        self, rule: Mapping[str, Any], own: Callable[[str], object]
    ) -> None:
        """Broken: whoever clears a task that was stopped could have it pass."""
        first, again = (self._outcome(rule, measured_of(0.85, 0.8), own) for _ in range(2))
        assert first == again

    def test_settings_are_checked_when_a_pipeline_is_parsed(self, rule: Mapping[str, Any]) -> None:
        """Broken: a typing mistake would be found at night."""
        if ":" in str(rule.get("rule", "")):
            pytest.skip("the scheduler does not import it")
        settings = {"registered_model": "m", "metric": "auc", "metrics": ["f1"], "fairness": ["city"], "rules": [rule]}
        dumped = check_section(Evaluate, settings, "evaluate").model_dump(mode="json")
        assert Evaluate.model_validate(dumped).model_dump(mode="json") == dumped
        with pytest.raises(SpecError, match="unknown key 'rules.0.no_such_setting'"):
            check_section(Evaluate, {**settings, "rules": [{**rule, "no_such_setting": 1}]}, "evaluate")
