"""The section ``evaluate``: what is measured, and the rules that decide."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from mlops.contract.metrics import Metric, check_distinct, short_name
from mlops.contract.rules import AnyRule, Fairness, Improvement
from mlops.contract.section import Name, Section


class Evaluate(Section):
    """Measure the candidate and the production model on the same held-out rows; decide by rules."""

    operational: ClassVar[frozenset[str]] = frozenset({"price_per_gpu_hour"})

    registered_model: Name
    """Name in the model registry."""
    metric: Metric
    """What the slices and, where they name none, the rules are about."""
    metrics: list[Metric] = []
    """Further ones to be measured. Rules and results call ``package.module:NAME`` by the last part, ``name``."""
    rules: list[AnyRule] = [Improvement(improvement=0.005)]
    """All must hold. Those given stand instead of the default, which asks for an improvement of 0.5%. A rule that needs
    a champion holds where there is none."""
    slices: list[str] = []
    """Columns of few values: the metric is measured on each value's rows. None given: all text columns of few."""
    fairness: list[str] = []
    """Columns of groups that are to be treated alike; with objective binary."""
    price_per_gpu_hour: float | None = Field(default=None, ge=0)
    """In whatever currency: what the training cost is then in the report."""

    @field_validator("rules")
    @classmethod
    def _some_rule(cls, value: list[AnyRule]) -> list[AnyRule]:
        if not value:
            raise ValueError("at least one rule; leave it out for the default")
        return value

    @model_validator(mode="after")
    def _rules_of_what_is_measured(self) -> Evaluate:
        check_distinct([self.metric, *self.metrics])
        measured = [short_name(metric) for metric in (self.metric, *self.metrics)]
        for rule in self.rules:
            named = getattr(rule, "metric", None)
            if named is not None and named not in measured:
                raise ValueError(
                    f"consistent: a rule is about {named!r}, but measured are {', '.join(measured)}; add it to metrics"
                )
            if isinstance(rule, Fairness) and not self.fairness:
                raise ValueError(
                    "consistent: a rule is about fairness, but no groups are named; give fairness: [column]"
                )
        return self
