"""An object that is not what was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MISSING: Final = "missing"
DAMAGED: Final = "damaged"


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """The damage of one object, or of a checkpoint's folder."""

    key: str
    problem: str
    """Kind of the damage, :data:`MISSING` or :data:`DAMAGED`."""
    expected: str | None = None
    """SHA-256 of the bytes that were written; None if nothing records it."""
    found: str | None = None
    """SHA-256 of the bytes that are there."""
    detail: str = ""
    """Further details, in a sentence."""
    owners: Sequence[str] = ()
    """Places of the refs that name the object."""
    hides: bool = False
    """True for a damaged manifest: the objects that it names were not looked at."""
    model: str | None = None
    """Model whose audit trail or decision it is part of."""

    def __str__(self) -> str:
        words = [f"{self.key} is {self.problem}"]
        if self.expected:
            words.append(f"expected SHA-256 {self.expected}")
        if self.found:
            words.append(f"found {self.found}")
        if self.detail:
            words.append(self.detail)
        if self.hides:
            words.append("what it names is unknown, and was not looked at")
        return "; ".join(words)
