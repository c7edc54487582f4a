"""What a search is told; meanings and defaults are in ``mlops.contract.sections.tune.Tune``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from mlops.contract.step import TRAIN_OPERATIONAL, StepInput, decisive, run_key


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneConfig:
    space: Mapping[str, Mapping[str, Any]]
    sampler: str
    pruner: str
    trials: int
    hours: float | None
    gpu_hours: float | None
    parallel: int
    connection: str | None
    seed: int
    train: Mapping[str, Any]
    """The section ``train``, with what is not searched."""

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Self:
        """:param section: of the step ``trial`` or ``tune``"""
        return cls(**{name: value for name, value in section.items() if name != "number"})


def study_name(document: StepInput) -> str:
    """
    The same for all trials and for the step that concludes: a retry finds its study, and so does a larger budget.

    :param document: of any of them
    """
    run, config = document.run, document.config
    kept = {name: config[name] for name in ("space", "sampler", "pruner", "seed", "train", "connection")}
    kept["train"] = decisive(kept["train"], TRAIN_OPERATIONAL)
    key = run_key("study", run.interval_end, run.timezone, kept, document.ref, document.code)
    return f"{run.pipeline}/{key}"
