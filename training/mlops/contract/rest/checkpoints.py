"""Checkpoints of trainings, as the REST API has them."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from mlops.contract.rest.asked import Asked
from mlops.contract.rest.runs import Settings
from mlops.contract.section import EXPERIMENT_NAME_PATTERN


class Checkpoint(BaseModel):
    """A whole checkpoint of a training, as its marker describes it."""

    id: str
    """``RUN:KEY:STEP``."""
    training: str
    """Its place in the store; its last part is the id's ``KEY``."""
    step: int
    """Optimizer steps since the start."""
    epoch: int
    """Whole epochs that are done."""
    is_end_of_epoch: bool
    validation: dict[str, float]
    """Metrics on the validation split after the last whole epoch; empty before the first one has ended."""
    is_best: bool
    """Whether it has the best weights of the training so far."""
    saved_at: datetime
    num_bytes: int
    """Of its tensors."""


class Checkpoints(BaseModel):
    """Of a run's trainings, the newest of each first."""

    checkpoints: list[Checkpoint]


class Restored(Asked):
    """What is not as in the training that is gone on with."""

    settings: Settings = Field(
        default_factory=dict,
        description="Other values for settings, as of `POST /runs`: of those of `train` the ones that no checkpoint "
        "holds, such as `train.epochs` and `train.learning_rate`",
        examples=[{"train.epochs": 20, "train.learning_rate": 0.0003}],
    )
    name: str | None = Field(default=None, pattern=EXPERIMENT_NAME_PATTERN, description="As of `POST /runs`")
