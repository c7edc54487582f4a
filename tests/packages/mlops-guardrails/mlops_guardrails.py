"""A rule of the gate: a better candidate may not be bought by any other metric that is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from mlops import RuleSpec, Section

if TYPE_CHECKING:
    from mlops import Measured, RuleOutcome


class Guardrails(Section):
    """No metric may be clearly worse than the champion's."""

    worse: float = Field(default=0.0, ge=0)
    """Relative to the champion: 0.01 allows each metric to be 1% worse."""
    confidence: float = Field(default=0.95, ge=0.5, le=0.99)
    """One-sided confidence with which a metric is found to be worse."""


def no_metric_is_worse(rule: Guardrails, measured: Measured) -> RuleOutcome:
    """Decide by the upper bound of each metric's gain: what may be chance is let pass."""
    from mlops import RuleOutcome  # the scheduler, which reads the settings, has not the libraries that this needs

    title = f"No metric more than {rule.worse:.2%} worse"
    compared = [each for each in measured.estimates.values() if each.champion is not None]
    if not compared:
        return RuleOutcome(title=title, passed=True, sentence="No champion whose metrics could be better.")
    highest = {each.title: each.lowest_gain(1 - rule.confidence) for each in compared}
    allowed = {each.title: -rule.worse * abs(each.champion.value) for each in compared if each.champion}
    broken = [name for name in highest if highest[name] < allowed[name]]
    if broken:
        sentence = f"{', '.join(broken)} {'is' if len(broken) == 1 else 'are'} clearly worse than the champion's."
    else:
        sentence = f"None of {len(compared)} metrics is clearly worse than the champion's."
    return RuleOutcome(title=title, passed=not broken, sentence=sentence)


GUARDRAILS = RuleSpec(section=Guardrails, outcome=no_metric_is_worse)
