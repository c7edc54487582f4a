"""The rules of the gate: what a candidate must come up to before it may replace the model in production."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, StringConstraints, Tag, model_validator

from mlops.contract.extensions import ExtensionPoint
from mlops.contract.section import EXTENSION_PATTERN, Section, SpecError


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


_BY_KEY: Mapping[str, type[Section]] = {
    "improvement": Improvement,
    "at_least": Threshold,
    "at_most": Threshold,
    "slices": SliceLoss,
    "latency_p99_ms": Latency,
    "size_mb": Size,
    "fairness": Fairness,
}


@dataclass(frozen=True, kw_only=True)
class RuleSpec:
    """
    A rule, as far as it is known without the libraries of the training runtime.

    An entry point of the group ``mlops.rules``, or an import path in a recipe, leads to one.
    """

    section: type[Section]
    """Its settings. One that is called ``metric`` names a metric that is measured."""
    outcome: str | Callable[..., Any]
    """``outcome(settings, measured) -> RuleOutcome``, or its import path in the training runtime; ``measured`` is a
    :class:`mlops.Measured`."""


_OURS: Final = "mlops.evaluation.rules"
IMPROVEMENT = RuleSpec(section=Improvement, outcome=f"{_OURS}:improvement")
THRESHOLD = RuleSpec(section=Threshold, outcome=f"{_OURS}:threshold")
SLICES = RuleSpec(section=SliceLoss, outcome=f"{_OURS}:slice_loss")
LATENCY = RuleSpec(section=Latency, outcome=f"{_OURS}:latency")
SIZE = RuleSpec(section=Size, outcome=f"{_OURS}:size")
FAIRNESS = RuleSpec(section=Fairness, outcome=f"{_OURS}:fairness")

RULES: Final = ExtensionPoint(
    kind="rule",
    group="mlops.rules",
    builtin={
        "improvement": "mlops.contract.rules:IMPROVEMENT",
        "threshold": "mlops.contract.rules:THRESHOLD",
        "slices": "mlops.contract.rules:SLICES",
        "latency": "mlops.contract.rules:LATENCY",
        "size": "mlops.contract.rules:SIZE",
        "fairness": "mlops.contract.rules:FAIRNESS",
    },
    attributes=("section", "outcome"),
)


class NamedRule(Section):
    """A rule that is given by its name, with its settings beside: of an installed package, or of the recipe."""

    model_config = ConfigDict(extra="allow")

    rule: Annotated[str, StringConstraints(pattern=EXTENSION_PATTERN), AfterValidator(RULES.check_known)]
    """Name of its entry point, or ``package.module:NAME``."""

    @model_validator(mode="before")
    @classmethod
    def _settings_of_the_rule(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or not isinstance(name := value.get("rule"), str):
            return value
        settings = {key: each for key, each in value.items() if key != "rule"}
        try:
            RULES.import_path(name)
        except SpecError:
            return value  # the check of the name says so
        return {"rule": name, **RULES.checked_settings(name, settings)}

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def _kind_of_rule(value: object) -> str | None:
    if isinstance(value, Section):
        return f"({type(value).__name__})"
    if isinstance(value, Mapping) and "rule" in value:
        return "(NamedRule)"
    kinds = [kind for key, kind in _BY_KEY.items() if key in value] if isinstance(value, Mapping) else []
    return f"({kinds[0].__name__})" if kinds else None


AnyRule = Annotated[
    Annotated[Improvement, Tag("(Improvement)")]
    | Annotated[Threshold, Tag("(Threshold)")]
    | Annotated[SliceLoss, Tag("(SliceLoss)")]
    | Annotated[Latency, Tag("(Latency)")]
    | Annotated[Size, Tag("(Size)")]
    | Annotated[Fairness, Tag("(Fairness)")]
    | Annotated[NamedRule, Tag("(NamedRule)")],
    Discriminator(
        _kind_of_rule,
        custom_error_type="kind_of_rule",
        custom_error_message=f"a rule, told by its key: {', '.join(_BY_KEY)}; or another, by rule: NAME",
    ),
]
