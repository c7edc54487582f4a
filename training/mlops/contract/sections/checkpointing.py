"""When a training's state is saved, and which one it goes on from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from mlops.contract.section import Section

TrainingPlace = Annotated[
    str, StringConstraints(pattern=r"^(pipelines/\w+|experiments/\w+/\w+(\.\w+)?)/train/[\w-]+(/start)?$")
]
"""Of a training in the store; or of what it has kept of another one that it went on from."""


class ResumeFrom(Section):
    """A checkpoint of another training."""

    training: TrainingPlace
    """Its place in the store: ``pipelines/NAME/train/KEY``, as ``mlops checkpoints list`` shows it."""
    step: int = Field(ge=1)
    """Optimizer steps since its start, after which the checkpoint was saved."""

    @property
    def pipeline(self) -> str:
        """The pipeline whose training it is, or which an experiment has tried out."""
        folder = self.training.partition("/train/")[0].rpartition("/")[2]
        return folder.partition(".")[0]


class Checkpointing(Section):
    """When the training's state is saved; also at the end of each epoch, and when the process is told to end."""

    every_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps."""
    every_minutes: float = Field(default=10, gt=0)
    """The longest time between two saves. They come sooner where that loses less: Daly's optimum of what a save was
    measured to cost and how often this training was interrupted (an hour where it never was), but never so often that
    saves overlap or take more than 2% of the time."""
    keep_latest: int = Field(default=3, ge=2)
    """Complete checkpoints kept beside the best one. At least 2: the newest may turn out to be damaged."""
    peers: int | None = Field(default=None, ge=0, le=1)
    """1: when a process or a node is lost, the others keep the last step's state in memory, and no step that was done
    is done again. 0: the training goes on from the last checkpoint. None: 1 for replicas on CPUs, where nothing is
    copied before a process is lost, and 0 elsewhere, where 1 is refused."""
