"""Durations, for people."""

from __future__ import annotations

_SECONDS_UNTIL = 120
_MINUTES_UNTIL = 7200


def duration(seconds: float) -> str:
    """Return a duration in the unit that suits it: ``90 s``, ``12 min``, ``6.5 h``."""
    if seconds < _SECONDS_UNTIL:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < _MINUTES_UNTIL else f"{seconds / 3600:.3g} h"
