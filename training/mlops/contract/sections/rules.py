"""The rules of the gate: what a candidate must come up to before it may replace the model in production."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from mlops.contract.section import Section


class SeedNoise(Section):
    """
    What luck of the seed does to a metric, found by trainings that differ in nothing else: trigger a night once for
    each of some seeds, and take the standard deviation of their metric on the hold-out.
    """

    deviation: float = Field(ge=0)
    """Standard deviation, in units of the metric."""
    trainings: int = Field(ge=3)
    """From how many it was found: of few it is itself uncertain, which is allowed for."""


class Improvement(Section):
    """Better than the model in production, by more than chance."""

    improvement: float = Field(ge=0)
    """Relative to the champion: 0.005 asks for a metric 0.5% better. Not the value found on the hold-out counts but the
    lower end of what it may be."""
    metric: str | None = None
    """One that is measured; ``evaluate.metric`` where None."""
    confidence: float = Field(default=0.95, ge=0.5, le=0.99)
    """One-sided confidence with which the improvement must be there; a thousand resamples tell no more than 0.99."""
    min_samples: int = Field(default=30, ge=2)
    """Queries, rows or documents on which both models are measured. With fewer the rule does not hold: with 95%
    confidence luck passed, by log loss, 26% of the time with 2, 12% with 5, 8% with 15 and 6% with 30 and with 100."""
    seed_noise: SeedNoise | None = None
    """None: another hold-out is allowed for, but not another seed."""


class Threshold(Section):
    """A bound for a metric of the candidate itself."""

    metric: str
    """One that is measured."""
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _a_bound(self) -> Threshold:
        if self.at_least is None and self.at_most is None:
            raise ValueError("complete: give at_least or at_most")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"possible: at_least must be <= at_most, got {self.at_least} and {self.at_most}")
        return self


class SliceLoss(Section):
    """No part of the hold-out on which the candidate is clearly worse than the model in production."""

    slices: float = Field(ge=0)
    """Relative to the champion on that slice: by how much ``evaluate.metric`` may be worse there."""
    min_samples: int = Field(default=100, ge=10)
    """Smaller slices do not count."""
    confidence: float = Field(default=0.95, ge=0.5, le=0.99)
    """With which a slice is found to be worse, of all slices together."""


class Latency(Section):
    """
    How long one request may take: features and model, without a network, on the machine that evaluates. What other
    programs there cost it does not count: time in line for a processor is taken off, and each request is repeated.
    """

    latency_p99_ms: float = Field(gt=0)
    """Slower is one request in a hundred."""


class Size(Section):
    """How large the served model may be: weights, fitted features and code."""

    size_mb: float = Field(gt=0)
    """Millions of bytes."""


class Fairness(Section):
    """How differently the groups of ``evaluate.fairness`` may be treated."""

    fairness: float = Field(ge=0, le=1)
    """The largest difference between two groups."""
    measure: Literal["equalised_odds", "demographic_parity"] = "equalised_odds"
    """``demographic_parity``: of the share predicted positive; ``equalised_odds``: of true or false positive rates."""


_RULES: Mapping[str, type[Section]] = {
    "improvement": Improvement,
    "at_least": Threshold,
    "at_most": Threshold,
    "slices": SliceLoss,
    "latency_p99_ms": Latency,
    "size_mb": Size,
    "fairness": Fairness,
}


def _kind_of_rule(value: object) -> str | None:
    if isinstance(value, Section):
        return f"({type(value).__name__})"
    kinds = [kind for key, kind in _RULES.items() if key in value] if isinstance(value, Mapping) else []
    return f"({kinds[0].__name__})" if kinds else None


AnyRule = Annotated[
    Annotated[Improvement, Tag("(Improvement)")]
    | Annotated[Threshold, Tag("(Threshold)")]
    | Annotated[SliceLoss, Tag("(SliceLoss)")]
    | Annotated[Latency, Tag("(Latency)")]
    | Annotated[Size, Tag("(Size)")]
    | Annotated[Fairness, Tag("(Fairness)")],
    Discriminator(
        _kind_of_rule,
        custom_error_type="kind_of_rule",
        custom_error_message=f"a rule, told by its key: {', '.join(_RULES)}",
    ),
]
