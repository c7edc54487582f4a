"""The time that work takes by itself, on a machine where other programs want the processors too."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

MAX_ROUNDS: Final = 5
ENOUGH_SECONDS: Final = 5.0
"""Seconds after which no further round is begun."""
_IDLE_SECONDS: Final = 0.1
_TASKS: Final = Path("/proc/self/task")
_COUNTS: Final = Path("/proc/self/schedstat").exists()


def own_seconds(calls: Sequence[Callable[[], object]]) -> npt.NDArray[np.float64]:
    """
    Measure how long each call takes, less what other programs cost it.

    Of the clock's time is taken off what threads of this process stood in line for a processor, as Linux counts it
    (``/proc/<pid>/task/<tid>/schedstat``): the calling thread, and of its helpers the one that waited longest. A thread
    that also works while nothing is called is no helper: it stands in line while the call waits for something else.
    That may be too much where they waited at the same time, so that never less is left than the time that all had on
    processors. The call's own waits, for a lock, a disk or a network, stay in. What is wrong in a single measurement,
    either way, is met by up to five rounds, of which the median counts. Where the kernel does not count, as on other
    systems than Linux, the rounds alone have to do.

    :return: ``[N]`` seconds
    """
    bystanders = _bystanders()
    rounds = []
    begun = time.perf_counter()
    for _ in range(MAX_ROUNDS):
        rounds.append([_timed(call, bystanders) for call in calls])
        if time.perf_counter() - begun > ENOUGH_SECONDS:
            break
    return np.median(np.array(rounds, dtype=np.float64), axis=0)


def _timed(call: Callable[[], object], bystanders: Set[int]) -> float:
    before = _counted()
    # Next to the clock: what this thread waits while it looks at a hundred others is not the call's.
    own_before = _counted_of("thread-self")
    begin, begin_work = time.perf_counter(), time.thread_time()
    call()
    own_work, seconds = time.thread_time() - begin_work, time.perf_counter() - begin
    own_wait = (_counted_of("thread-self")[1] - own_before[1]) / 1e9
    others = _between(before, _counted())
    helpers = {
        thread: times for thread, times in others.items() if thread not in bystanders | {threading.get_native_id()}
    }
    undisturbed = seconds - own_wait - max((waited for _, waited in helpers.values()), default=0.0)
    return min(seconds, max(undisturbed, own_work + sum(worked for worked, _ in helpers.values())))


def _bystanders() -> Set[int]:
    before = _counted()
    time.sleep(_IDLE_SECONDS)
    worked = _between(before, _counted())
    return {thread for thread, (on_processor, in_line) in worked.items() if on_processor or in_line}


def _between(
    before: Mapping[int, tuple[int, int]], after: Mapping[int, tuple[int, int]]
) -> dict[int, tuple[float, float]]:
    """Return the seconds of each thread on a processor, and in line for one."""
    times = {}
    for thread, (on_processor, in_line) in after.items():
        on_processor_before, in_line_before = before.get(thread, (0, 0))
        times[thread] = (on_processor - on_processor_before) / 1e9, (in_line - in_line_before) / 1e9
    return times


def _counted() -> dict[int, tuple[int, int]]:
    """Return the times of each thread of this process: nanoseconds on a processor, and in line for one."""
    found = {}
    for thread in os.listdir(_TASKS) if _TASKS.exists() else ():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            found[int(thread)] = _counted_of(f"self/task/{thread}")
    return found


def _counted_of(thread: str) -> tuple[int, int]:
    """Return the total nanoseconds on a processor, and in line for one; 0 if the kernel does not count."""
    if not _COUNTS:
        return 0, 0
    # Then the number of turns: https://docs.kernel.org/scheduler/sched-stats.html
    on_processor, in_line, _ = Path("/proc", thread, "schedstat").read_text().split()
    return int(on_processor), int(in_line)
