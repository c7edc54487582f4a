"""Whose experiment comes next, where more of them wait than may run at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from mlops.contract.rest import Priority

_BEFORE_LOW: Final = timedelta(minutes=1)
"""How long before the first run of low priority the first one of normal priority is put."""
_STEP: Final = timedelta(milliseconds=10)
"""Between those that follow it; halves would end at equal times after twenty."""


class Waiting(NamedTuple):
    """A run that waits, for whoever asked for it."""

    user: str | None
    run_after: datetime
    """Airflow starts the runs of a DAG by it."""
    priority: Priority


def run_after(waiting: Sequence[Waiting], user: str | None, now: datetime, priority: Priority) -> datetime:
    """
    Return the time that puts a new run into the line so that users take turns: the n-th waiting run of each comes
    before anybody's next one, however many were asked for before. So it is among the runs of normal priority, and, once
    none of these waits, among those of low priority.

    Those that somebody has had Airflow put off to a later time do not count before that.

    :param waiting: by their times
    """
    ranks: Counter[str | None] = Counter()
    waiting = [each for each in waiting if each.run_after <= now]
    peers = [each for each in waiting if each.priority == priority]
    place = 1 + sum(each.user == user for each in peers)
    before = found = now
    for each in peers:
        ranks[each.user] += 1
        if ranks[each.user] > place:
            found = before + (each.run_after - before) / 2
            break
        before = each.run_after
    low = [] if priority == "low" else [each.run_after for each in waiting if each.priority == "low"]
    if not low or found < low[0]:
        return found
    before = max((each.run_after for each in peers if each.run_after < low[0]), default=low[0] - _BEFORE_LOW)
    return before + min((low[0] - before) / 2, _STEP)
