"""What a checkpoint says of its training, and what a training must have in common with it to go on from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from mlops.contract.extensions import is_of_recipe
from mlops.contract.refs import shorten
from mlops.contract.sections.sample_order import SampleOrder
from mlops.contract.sections.train import Train

FACTS: Final = "training"
"""Of a checkpoint's ``meta``: what it is a checkpoint of."""
MAY_DIFFER: Final = Train.operational | {
    *("epochs", "early_stopping", "learning_rate", "schedule", "clip_norm", "loss", "curriculum"),
    *("nodes", "processes", "parallel", "elastic", "logical_shards", "micro_batch", "micro_batch_rows"),
    *("activation_checkpointing", "compile", "deterministic", "float32_matmul", "unused_parameters"),
    # Where the other one has begun.
    *("initialise", "resume_from"),
}
"""Settings that are not part of what a checkpoint holds: not of the model, the optimizer's state or the place in the
data."""


class TrainingFacts(BaseModel):
    """What a training is, as far as one that goes on with it must be the same."""

    model_config = ConfigDict(frozen=True, strict=True)

    settings: dict[str, Any]
    """Of ``train``."""
    samples: str
    """Digest of the samples of training and validation, and of how they are cut."""
    dataset: str
    """Version of the snapshot."""
    code: str
    """Digest of the recipe's code."""
    optimizer: list[str]
    """Options of the optimizer's groups as it was built, but for the learning rate."""


class PastEpoch(BaseModel):
    """An epoch that is done."""

    step: int
    validation_metric: FiniteFloat
    further_metrics: dict[str, FiniteFloat]


class Standing(BaseModel):
    """How far a training was when a checkpoint was saved."""

    training: TrainingFacts
    history: list[PastEpoch]
    step: int = Field(ge=1)

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Standing | None:
        """
        :param meta: of a checkpoint
        :return: None where it does not say so, as one of an earlier release
        """
        try:
            return cls.model_validate(meta)
        except ValidationError:
            return None

    @property
    def is_mid_epoch(self) -> bool:
        return self.step != (self.history[-1].step if self.history else 0)

    @property
    def epochs_begun(self) -> int:
        return len(self.history) + self.is_mid_epoch

    def hindrances(self, settings: Mapping[str, Any]) -> list[str]:
        """
        Tell what of its settings keeps a training from going on here.

        :param settings: of its ``train``
        :return: a clause each
        """
        then, now = self.training.settings, settings
        found = [_differs(name, then, now) for name in _held(then, now) if then.get(name) != now.get(name)]
        begun = self.epochs_begun
        if now["epochs"] < begun:
            found.append(f"epochs is {now['epochs']}, and {begun} were begun: ask for more")
        elif self.is_mid_epoch and (order := now["sample_order"]) and order == then.get("sample_order"):
            ordered = [SampleOrder(**order).ordered_epochs(each["epochs"]) >= begun for each in (then, now)]
            if ordered[0] != ordered[1]:
                found.append(
                    f"{_differs('epochs', then, now)}, which by sample_order.until changes the order of epoch {begun}"
                )
        return found

    def changes(self, facts: TrainingFacts) -> list[str]:
        """
        Tell what keeps a training from going on here, beside its settings.

        :param facts: of the training that goes on
        :return: a clause each
        """
        found = []
        if self.training.samples != facts.samples:
            found.append("the samples are not those that it has learnt from: start from the same snapshot and features")
        if self.training.optimizer != facts.optimizer:
            here, there = {*facts.optimizer}, {*self.training.optimizer}
            only = [", ".join(sorted(each)) or "without them" for each in (here - there, there - here)]
            found.append(f"the optimizer was built with {shorten(only[0])} here and {shorten(only[1])} there")
        if self.training.code != facts.code:
            found += [f"the recipe's code has changed, and {name} with it" for name in self._of_recipe(facts.settings)]
        return found

    def _of_recipe(self, settings: Mapping[str, Any]) -> Sequence[str]:
        """Settings whose code must be the same: by what an epoch is ordered, and what epochs are compared by."""
        metrics = [name for name in (settings["metric"], *settings["metrics"]) if is_of_recipe(name)]
        return [*metrics, *(["sample_order.by"] if settings["sample_order"] and self.is_mid_epoch else [])]


def _held(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    # With exact sums their order counts, which any number of processes leaves as it is.
    exact = {"logical_shards"} if then.get("elastic") == now["elastic"] == "exact" else set()
    return [name for name in Train.model_fields if name not in MAY_DIFFER or name in exact]


def _differs(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    return f"{name} is {shorten(now.get(name))} here and was {shorten(then.get(name))} there"
