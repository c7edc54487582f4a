"""What the steps ``tune`` and ``trial`` are told: a search, and the training that is searched."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from mlops.contract.sections.train import Train
from mlops.contract.sections.tune import Tune, fitted
from mlops.contract.step import TRAIN_OPERATIONAL


class Study(Tune):
    """A search, and what is searched: what the step ``tune`` is told."""

    operational: ClassVar[frozenset[str]] = frozenset({"parallel", *(f"train.{name}" for name in TRAIN_OPERATIONAL)})

    train: Train

    @model_validator(mode="wrap")
    @classmethod
    def _fitted(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        study = handler(value)
        return fitted(study, study.train)


class Trial(Study):
    """One of its trials: the step ``trial``. Done once, also where the budget is raised later."""

    operational: ClassVar[frozenset[str]] = Study.operational | {"trials", "hours", "gpu_hours"}

    number: int = Field(ge=0)
