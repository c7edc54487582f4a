"""What steps are given that is not a section of a pipeline as it stands: operators make it of sections, and of more."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from mlops.contract.section import Section
from mlops.contract.sections.release import Register
from mlops.contract.sections.train import Train
from mlops.contract.sections.tune import Tune, fitted


class TuneStep(Tune):
    """A search, and the training whose settings are searched."""

    operational: ClassVar[frozenset[str]] = frozenset({"parallel", *(f"train.{name}" for name in Train.operational)})

    train: Train

    @model_validator(mode="wrap")
    @classmethod
    def _fitted(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        step = handler(value)
        return fitted(step, step.train)


class TrialStep(TuneStep):
    """One of its trials. Done once, also where the budget is raised later."""

    operational: ClassVar[frozenset[str]] = TuneStep.operational | {"trials", "hours", "gpu_hours"}

    number: int = Field(ge=0)


class RegisterStep(Register):
    """A version, and who is trusted."""

    keys: list[str] = []
    """Public keys that entries of the audit trail must be signed by which others wrote. They come from Airflow."""


class PromoteStep(Section):
    """What becomes of a version: also what approval, canary and rollback ask for."""

    action: Literal["promote", "approve", "canary", "archive", "rollback"]
    why: str = ""
    """In a sentence; empty takes the gate's."""
    decisions: list[str] = []
    """Keys of the signed records of those who approved, for ``approve``."""
    approvals: int = Field(default=0, ge=0)
    """How many people must have approved, for ``approve`` and ``promote``; 0: nobody is asked."""
    canary_minutes: float | None = Field(default=None, gt=0)
    """How long it must have been the canary, for ``promote``; None: it need not have been."""
    keys: list[str] = []
    """Public keys that those records, and entries of others, must be signed by. They come from Airflow: a step has no
    say in them."""
    request: str | None = None
    """Makes equal work of two runs different work; else a second rollback would be taken for the first."""
