"""Names of the columns that steps add to rows for a while: one of the data's own would be overwritten, and dropped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

INTERNAL_COLUMNS: Final = frozenset(
    {
        "__after", "__asked", "__bucket", "__count", "__found", "__number", "__order", "__period", "__rank", "__row",
        "__seen", "__shard", "__split",
    }
)  # fmt: skip
"""In one place, though each module has its own: a table is refused when it is made, not by the step that trips."""


def taken_name(columns: Iterable[str]) -> str | None:
    """Return the first of the columns whose name is taken; None if there is none."""
    return next((name for name in columns if name in INTERNAL_COLUMNS), None)
