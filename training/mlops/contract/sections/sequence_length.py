"""Short sequences of tokens at first."""

from __future__ import annotations

from pydantic import Field

from mlops.contract.section import Section


class SequenceLength(Section):
    """A length that sequences have for a part of the training."""

    tokens: int = Field(ge=1)
    """The length, which divides the ``context`` of the TokenSet."""
    until: float = Field(gt=0, lt=1)
    """Share of the training's steps at which it ends."""
