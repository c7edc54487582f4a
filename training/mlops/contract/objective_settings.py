"""The settings of objectives, ``train.objective_settings``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mlops.contract.section import Section


def _named(classes: object) -> object:
    """Name the classes of a number of them by their labels."""
    if isinstance(classes, int) and not isinstance(classes, bool) and classes > 1:
        return [str(label) for label in range(classes)]
    return classes


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"different names, and {twice!r} is there twice")
    return names


class MulticlassSettings(Section):
    """Settings of the objective ``multiclass``."""

    classes: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        Field(min_length=2),
        BeforeValidator(_named),
        AfterValidator(_distinct),
    ]
    """Names of the classes, in the order of their labels 0, 1, 2 and so on, as in the feature set's ``classes``; or how
    many there are, and each is called by its label."""


class MultilabelSettings(Section):
    """Settings of the objective ``multilabel``."""

    labels: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=2), AfterValidator(_distinct)]
    """The columns of ``FeatureSet.label``, in their order: a served answer calls each by its name."""


class RegressionSettings(Section):
    """Settings of the objective ``regression``."""

    loss: Literal["mse", "mae", "huber", "poisson", "quantile"] = "mse"
    """What is minimised: the squared error, whose optimum is the mean; the absolute error, whose optimum is the median;
    Huber's loss, which is squared up to ``delta`` and absolute beyond; the negative log-likelihood of a Poisson
    distribution, of whose rate the model gives the logarithm; or the pinball loss of ``quantiles``, each of which is an
    output of the model."""
    delta: float = Field(default=1.0, gt=0)
    """In the label's unit; with ``huber``."""
    quantiles: list[Annotated[float, Field(gt=0, lt=1)]] = Field(default=[])
    """Levels, in ascending order, 0.5 among them: where one number is asked for, the median is the prediction."""

    @model_validator(mode="after")
    def _quantiles_of_the_loss(self) -> RegressionSettings:
        if self.loss != "quantile":
            if self.quantiles:
                raise ValueError("consistent: quantiles go with loss: quantile; set it, or remove them")
        elif self.quantiles != sorted(set(self.quantiles)) or 0.5 not in self.quantiles:
            raise ValueError(
                f"consistent: loss: quantile needs quantiles in ascending order, 0.5 among them, such as "
                f"[0.1, 0.5, 0.9], got {self.quantiles}"
            )
        return self
