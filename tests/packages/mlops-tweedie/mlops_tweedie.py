"""The declarations: what the scheduler reads, without the libraries of the training runtime."""

from __future__ import annotations

from pydantic import Field

from mlops import MetricSpec, ObjectiveSpec, Parameter, Section


class Tweedie(Section):
    """A compound of Poisson and gamma: how often something happens, and how much it costs each time."""

    power: float = Field(default=1.5, gt=1, lt=2)
    """The variance is proportional to this power of the mean: near 1 as of counts, near 2 as of amounts."""


TWEEDIE = ObjectiveSpec(predicts="value", section=Tweedie, implementation="mlops_tweedie_objective:TweedieObjective")
TWEEDIE_DEVIANCE = MetricSpec(
    measures=["value"],
    higher_is_better=False,
    title="Tweedie deviance",
    parameter=Parameter(name="POWER", whole=False),
    weighted="mlops_tweedie_metric:weighted_deviance",
)
