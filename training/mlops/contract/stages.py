"""The stages of a model version, and the registry's aliases that name who is in them. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mlops.contract.printable import one_line

STAGING: Final = "staging"
CANARY: Final = "canary"
PRODUCTION: Final = "production"
ARCHIVED: Final = "archived"

CHAMPION: Final = "champion"
"""The alias of the version in production: what servers load."""
ALIASES: Final[Mapping[str, str]] = {PRODUCTION: CHAMPION, CANARY: "canary", STAGING: "staging"}
"""Alias of the newest version in each stage. Production comes first, for readers wait for it."""
STAGE_TAG: Final = "mlops.stage"
"""Tag of a version that has ever been in a stage."""
MOST_FORMER: Final = 20
"""Former champions that are kept, hence most rollbacks in a row; each entry of the audit trail holds the list."""


def reason_of(text: str) -> str:
    """
    Return what a person gives as the reason of a move, as one printable line.

    :raises ValueError: if it is empty
    """
    words = one_line(text)
    if not words:
        raise ValueError("it is empty: say why, for those who read the audit trail")
    return words
