"""The model now in production, with the way back to its data and code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from mlops.contract.refs import CheckpointRef, ModelVersionRef


@dataclass(frozen=True, kw_only=True, slots=True)
class Champion:
    """A version in the registry and the checkpoint it was made from."""

    version: str
    checkpoint: CheckpointRef

    @classmethod
    def of(cls, ref: ModelVersionRef) -> Self:
        return cls(version=ref.version, checkpoint=ref.ancestor(CheckpointRef))
