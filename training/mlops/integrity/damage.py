"""An object that is not what was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MISSING: Final = "missing"
DAMAGED: Final = "damaged"


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """One object, or a checkpoint's folder."""

    key: str
    problem: str
    """:data:`MISSING` or :data:`DAMAGED`."""
    expected: str | None = None
    """SHA-256 of what was written, where something says it."""
    found: str | None = None
    """SHA-256 of what is there."""
    detail: str = ""
    """More, in a sentence."""
    owners: Sequence[str] = ()
    """Places of the refs that name it."""
    hides: bool = False
    """True of a manifest: what it names was not looked at."""
    model: str | None = None
    """Whose audit trail or decision it is part of."""

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
