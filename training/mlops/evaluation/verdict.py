"""What rules are about, and what comes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlops.contract.step import BadConfigError
from mlops.evaluation.bias import GroupDifference
from mlops.evaluation.bootstrap import Estimate
from mlops.evaluation.serving_benchmark import ServingBenchmark
from mlops.evaluation.slice_metrics import Slice


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """All that rules are about."""

    metric: str
    """The first of ``estimates``, which slices are about too."""
    champion_version: str | None
    estimates: Mapping[str, Estimate]
    slices: Sequence[Slice]
    groups: Sequence[GroupDifference]
    serving: ServingBenchmark

    def estimate(self, metric: str | None) -> Estimate:
        """:raises BadConfigError: where that metric is not measured"""
        name = metric or self.metric
        if name not in self.estimates:
            raise BadConfigError(
                f"evaluate.rules: a rule is about {name!r}, but measured are {', '.join(self.estimates)}; add it to "
                "evaluate.metrics, or have evaluate.metric_function return it"
            )
        return self.estimates[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleOutcome:
    """What came of one rule."""

    title: str
    passed: bool
    sentence: str
    """For people: value, threshold, and what follows."""
    note: str = ""
    """What the rule does not see."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    """Where the value may lie; None where it is what it is."""
    threshold: float | None = None
    must_exceed: bool = True
    """Whether the good side of the threshold is above it."""
    asked: str = ""
    """Which of the numbers must be on that side."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    passed: bool
    reason: str
    outcomes: Sequence[RuleOutcome]
