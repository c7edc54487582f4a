"""What a training of torch starts from, where it is not chance."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, Field, FiniteFloat, StringConstraints, model_validator

from mlops.contract.extensions import by_import_path
from mlops.contract.learners import LEARNERS, TORCH
from mlops.contract.section import CLAIM_PATTERN, LABEL_PATTERN, Digest, Section, Text, alike

Version = Annotated[str, StringConstraints(pattern=r"^[^@/\s]+(@[^@/\s]+|/\d+)$")]
"""``NAME@ALIAS``, or ``NAME/VERSION``."""


ClaimName = Annotated[str, StringConstraints(pattern=CLAIM_PATTERN)]


def _told_apart(claimed: dict[str, float]) -> dict[str, float]:
    if (said := alike(claimed)) is not None:
        raise ValueError(f"of different names: {said}")
    return claimed


Claims = Annotated[dict[ClaimName, FiniteFloat], Field(max_length=100), AfterValidator(_told_apart)]
"""Metrics by name."""
Label = Annotated[str, StringConstraints(pattern=LABEL_PATTERN)]


class StoredWeights(Section):
    """An object of the store with weights: an artifact of the checkpoint that a version was registered from."""

    key: str
    sha256: Digest
    num_bytes: int
    version: str
    """Number of the version; empty for a copy of a file."""


class JudgedWeights(Section):
    """Weights that were trained elsewhere, which a run of the pipeline is to judge."""

    path: Text
    """As ``path`` of :class:`Initialise`."""
    sha256: Digest | None = None
    """Of that file; None: as it is when the training first begins."""
    rename: dict[Text, str] = {}
    known_as: Label | None = None
    claimed: Claims = {}
    as_of: datetime | None = None
    """Where it was asked for: the end of the run's data interval, which must be this one."""

    def start(self, sha256: str) -> dict[str, Any]:
        """
        Return the settings of the training by which they are taken as they are.

        :param sha256: of the file
        """
        return {"epochs": 0, "initialise": {**self.model_dump(mode="json", exclude={"as_of"}), "sha256": sha256}}


class Initialise(Section):
    """Weights to start from: those of a registered model, or a file that is pinned by its digest."""

    model: Version | None = None
    """``NAME@ALIAS`` or ``NAME/VERSION`` of a model that torch has trained. What an alias means is looked up when the
    task first begins, and holds for its later tries."""
    path: Text | None = None
    """A file as ``torch.save(model.state_dict())`` writes it: relative to the project folder, absolute, or
    ``s3://bucket/key``. Tensors alone are read from it: it cannot run code."""
    sha256: Digest | None = None
    """Of that file."""
    leave_out: list[Text] = []
    """Names of parameters and buffers that start as ``build_model`` makes them, such as a head of other classes;
    patterns: ``head.*``. All others must be there, with the same shapes."""
    rename: dict[Text, str] = {}
    """Parts of the model's names, and what stands there in the weights: ``{".base_layer.": "."}`` of a model whose
    layers peft has wrapped."""
    known_as: Label | None = None
    """What the weights are called where they come from, such as the number of a version there."""
    claimed: Claims = {}
    """Metrics by name, as whoever has trained the weights says: kept as said, and nothing is judged by them."""
    found: StoredWeights | None = None
    """What ``model`` is when the task begins: the operator writes it, and it is part of the run key. Of ``path`` the
    kept copy, where the training is made again."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Initialise:
        if (self.model is None) == (self.path is None):
            raise ValueError("given as model, such as taxi@champion, or as path and sha256")
        if (self.path is None) != (self.sha256 is None):
            raise ValueError("pinned: path and sha256 belong together, for the same file must be read again")
        return self

    @property
    def is_fixed(self) -> bool:
        """Whether it is the same whenever it is looked up: all but an alias is."""
        return self.model is None or "@" not in self.model


class LearningRate(Section):
    """The learning rate of some parameters."""

    parameters: Text
    """Their names in the model, or a pattern: ``encoder.*``."""
    factor: float = Field(gt=0)
    """Of ``learning_rate``."""


def why_not_taken(start: Initialise | None, learner: str) -> str | None:
    """Return why weights cannot be taken as they are, in 0 epochs; None where they can."""
    if start is None:
        return "epochs: 0 takes the weights of initialise as they are; say which, or 1 epoch or more"
    if start.leave_out:
        return "with epochs: 0 nothing learns what initialise.leave_out leaves; remove it"
    if learner != TORCH and start.rename:
        return "initialise.rename is of learner: torch; remove it"
    if not by_import_path(learner) and not LEARNERS.load(learner).reads_only_data:
        return (
            f"what {learner} stores can run code, so that nothing of it is taken from elsewhere; train here, with 1 "
            "epoch or more"
        )
    return None
