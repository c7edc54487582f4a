"""Cases and tests of which each commit takes some, and ``make chaos`` all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest

WHOLE = "CHAOS_ROUNDS" in os.environ


def _commit() -> int:
    """A number of the checked out commit: the same tests run each time that it is tested."""
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    return int(done.stdout, 16)


SEED = int(os.environ.get("TURN") or _commit())

Case = TypeVar("Case")


def by_turns(cases: Sequence[Case], among: int = 3) -> list[Case]:
    """One of so many cases, others at another commit; ``TURN=N`` chooses them."""
    return list(cases) if WHOLE else list(cases)[SEED % among :: among]


def on_turn(number: int, among: int) -> pytest.MarkDecorator:
    """For a long test: one of so many that take turns by the commit."""
    ours = WHOLE or SEED % among == number
    return pytest.mark.skipif(not ours, reason=f"takes turns with {among - 1} others; TURN={number} runs it")
