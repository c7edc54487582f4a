"""What a training of torch starts from, where it is not chance."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from mlops.contract.section import Digest, Section, Text

Version = Annotated[str, StringConstraints(pattern=r"^[^@/\s]+(@[^@/\s]+|/\d+)$")]
"""``NAME@ALIAS``, or ``NAME/VERSION``."""


class StoredWeights(Section):
    """An object of the store with weights: an artifact of the checkpoint that a version was registered from."""

    key: str
    sha256: Digest
    num_bytes: int
    version: str
    """Number of the version; empty for a copy of a file."""


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
