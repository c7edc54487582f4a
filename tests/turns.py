"""Cases and tests of which each day takes some, and ``make chaos`` all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date
from typing import TypeVar

import pytest

WHOLE = "CHAOS_ROUNDS" in os.environ
SEED = int(os.environ.get("TURN") or date.today().toordinal())

Case = TypeVar("Case")


def by_turns(cases: Sequence[Case], among: int = 3) -> list[Case]:
    """One of so many cases, others tomorrow; ``TURN=N`` chooses them."""
    return list(cases) if WHOLE else list(cases)[SEED % among :: among]


def on_turn(number: int, among: int) -> pytest.MarkDecorator:
    """For a long test: one of so many that take turns by the day."""
    ours = WHOLE or SEED % among == number
    return pytest.mark.skipif(not ours, reason=f"takes turns with {among - 1} others; TURN={number} runs it")
