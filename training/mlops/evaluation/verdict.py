"""The measurements that rules are about, and the results of rules."""

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
    """All measured values that rules are about."""

    metric: str
    """Name of the first of ``estimates``, which slices are about too."""
    champion_version: str | None
    estimates: Mapping[str, Estimate]
    slices: Sequence[Slice]
    groups: Sequence[GroupDifference]
    serving: ServingBenchmark

    def estimate(self, metric: str | None) -> Estimate:
        """
        Return the estimate of a metric; None stands for :attr:`metric`.

        :raises BadConfigError: where that metric is not measured
        """
        name = metric or self.metric
        if name not in self.estimates:
            raise BadConfigError(
                f"evaluate.rules: a rule is about {name!r}, but measured are {', '.join(self.estimates)}; add it to "
                "evaluate.metrics"
            )
        return self.estimates[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleOutcome:
    """The result of one rule."""

    title: str
    passed: bool
    sentence: str
    """Sentence for people: value, threshold, and the consequence."""
    note: str = ""
    """A limit of the rule: what it does not see."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    """Upper end of the range in which the value may lie; None if the value is exact."""
    threshold: float | None = None
    must_exceed: bool = True
    """True if the good side of the threshold is above it."""
    asked: str = ""
    """The condition in words: which number must be on which side of the threshold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    passed: bool
    reason: str
    outcomes: Sequence[RuleOutcome]
