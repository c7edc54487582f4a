"""Whose experiment comes next, where more of them wait than may run at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple


class Waiting(NamedTuple):
    """A run that waits, for whoever asked for it."""

    user: str | None
    run_after: datetime
    """Airflow starts the runs of a DAG by it."""


def run_after(waiting: Sequence[Waiting], user: str | None, now: datetime) -> datetime:
    """
    Return the time that puts a new run into the line so that users take turns: the n-th waiting run of each comes
    before anybody's next one, however many were asked for before.

    :param waiting: by their times
    """
    ranks: Counter[str | None] = Counter()
    place = 1 + sum(each.user == user for each in waiting)
    before = now
    for each in waiting:
        ranks[each.user] += 1
        if ranks[each.user] > place:
            return before + (each.run_after - before) / 2
        before = each.run_after
    return now
