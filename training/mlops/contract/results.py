"""What comes out of an experiment, for programs: by REST, and by ``mlops run --json``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel

CANDIDATE: Final = "candidate."
CHAMPION: Final = "champion."
DIFFERENCE: Final = "difference."
"""Begin the names of an evaluation's metrics."""


def of_candidate(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the candidate's own metrics out of an evaluation's, by their names; intervals are left out."""
    return {
        name.removeprefix(CANDIDATE): value
        for name, value in metrics.items()
        if name.startswith(CANDIDATE) and not name.endswith((".low", ".high"))
    }


def verdict(passed: bool) -> str:
    """What the gate would do, in words."""
    return f"would {'' if passed else 'not '}be registered"


class TrainingResult(BaseModel):
    """What came out of a training, and of its evaluation where there was one."""

    seed: int
    checkpoint: str
    """Its place in the store."""
    epoch: int
    """The best one."""
    tracking_run: str
    """Of MLflow."""
    tracking: str
    """Address of that run."""
    validation: dict[str, float]
    """Metrics of the validation, of the best epoch."""
    metrics: dict[str, float] | None = None
    """Of the evaluation: ``candidate.NAME``, ``champion.NAME``, ``difference.NAME``, and the limits of intervals."""
    passed: bool | None = None
    """Whether the gate let it pass; of an experiment, whether it would."""
    reason: str | None = None
    champion: str | None = None
    """Version that was in production then."""
    evaluation: str | None = None
    """Its place in the store."""
    report: str | None = None
    """Address of the report."""


class Spread(BaseModel):
    """How a metric varies over seeds."""

    mean: float
    standard_deviation: float
    """Of the sample: with N - 1."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """
        :param values: two at least
        """
        return cls(mean=statistics.mean(values), standard_deviation=statistics.stdev(values))


class ExperimentResult(BaseModel):
    """What came out of an experiment, or of a pipeline's own run."""

    experiment: str
    """Where it lies in the store; of an experiment its name in MLflow, too."""
    interval: tuple[datetime, datetime]
    """Of the data."""
    last: dict[str, Any] | None
    """Where nothing was to be trained: the ref of the last step."""
    trainings: list[TrainingResult]
    over_seeds: dict[str, Spread] = {}
    """Of several trainings: how each metric varies, that of the evaluation, or else of the validation."""
