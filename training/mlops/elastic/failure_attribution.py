"""What went wrong first, of all that goes wrong when one rank of a gang fails."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mlops.contract.refs import Ref
from mlops.contract.step import INTERRUPTED, Failure, StepError, read_result

_BROKEN_CONNECTION = re.compile(
    r"connection (?:reset|closed|refused|was )|broken pipe|gloo/transport|nccl (?:communicator )?(?:error|was aborted)"
    r"|remote process exited|socket (?:closed|timeout)|failed to recv",
    re.IGNORECASE,
)
_LATE = re.compile(
    r"timed out (?:waiting|after)|wait timeout|collective operation timeout|has not said whether|have not written their"
)
_MISMATCH = re.compile(r"[^\n]*collective mismatch[^\n]*|[^\n]*mismatch between collectives[^\n]*", re.IGNORECASE)
_OF_CODE: Final = frozenset({"RuntimeError", "ValueError", "TypeError", "KeyError", "IndexError"})
"""Types of errors that a mistake in code, or data that it cannot bear, shows itself by."""
_OF_MACHINE: Final = re.compile(
    r"cuda|cudnn|cublas|nccl|nvml|hip error|device|driver|memory|alloc|no space|file write failed|inline_container"
    r"|unable to (?:open|mmap|write)|open files|ancdata|thread|timed? ?out|temporarily|connect|unavailable",
    re.IGNORECASE,
)
"""Words of errors that another machine, or the same one in an hour, may not have."""
_PLACE = re.compile(r"rank \d+ of \d+ on \S+")
_RECIPE_LINE = re.compile(r" \(\S+:\d+, in \S+\)")
_TOLD_OF = re.compile(r"\brank (\d+): ")


class RankLostError(StepError):
    """A rank's process ended without saying why: killed, out of memory, crashed."""


class NodesLostError(StepError):
    """Too few nodes are left to go on. A retry goes on from the last checkpoint."""


class NodesApartError(StepError):
    """
    Nodes have not come together.

    :ivar details: with ``join_seconds``, for which each of them waits, and ``is_fixed``: whether none can be missing
    """


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A rank whose process ended."""

    rank: int
    exit_code: int
    """Minus the signal that killed it."""
    tail: Sequence[str]
    """Last lines of the worker's output."""
    was: str
    """Last heartbeat of the worker, in words."""
    doing: str = ""
    """Where it stood as a signal ended it."""

    @property
    def interrupted(self) -> bool:
        """It was asked to end."""
        return self.exit_code in (INTERRUPTED, -signal.SIGTERM)

    @property
    def aborted(self) -> bool:
        return self.exit_code == -signal.SIGABRT

    @property
    def follows(self) -> bool:
        """A watchdog ended it, because it waited for others."""
        text = "\n".join(self.tail)
        return self.aborted and bool(_LATE.search(text) or _BROKEN_CONNECTION.search(text))


def result_path(folder: Path, rank: int) -> Path:
    """Each rank writes a result document of its own, so that none hides another's."""
    return folder / f"result-{rank}.json"


def committed(folder: Path, ranks: Sequence[int]) -> Ref | None:
    """The ref that a rank has committed: the work is done, whatever fails afterwards."""
    results = (read_result(result_path(folder, rank)) for rank in ranks)
    return next((result for result in results if isinstance(result, Ref)), None)


class MismatchError(StepError):
    """Ranks have called different collectives, or the same one with other sizes."""


def first_failure(folder: Path, ended: Sequence[Ended], *, world_size: int, node: str, kills: str) -> Failure | None:
    """
    The cause, named after its rank.

    A rank that fails makes the others fail, whose connections to it break: they say so, but later. So first comes what
    cannot be retried; then who ended without a word, for whoever only follows says an error; then whose collectives
    did not fit; then who first said an error of its own.

    :param ended: those that failed, or left early, and were not asked to end
    :param kills: what the kernel says of processes killed for want of memory, see :func:`memory_kills`
    :return: None where all that failed only speak of other ranks
    """
    told = _told(folder, world_size)
    tails = {one.rank: one.tail for one in ended}
    for rank, failure in told.items():
        if not failure.retryable:
            return _named(failure, rank, world_size, node, tails.get(rank, ()))
    silent = sorted((one for one in ended if one.rank not in told), key=lambda one: one.exit_code >= 0)
    lost = [one for one in silent if not one.aborted]
    if lost:
        for rank, failure in told.items():
            if _told_of(failure) == lost[0].rank:  # which could not write it down, as where its disk is full
                return _named(failure, rank, world_size, node, lost[0].tail)
        return _lost(lost[0], world_size, node, kills, certain=True)
    if mismatched := [one for one in silent if _mismatch(one)]:
        return _mismatched(mismatched[0], ended, world_size, node)
    for rank, failure in told.items():
        if not blames_others(failure):
            return _named(failure, rank, world_size, node, tails.get(rank, ()))
    aborted = [one for one in silent if not one.follows]
    return _lost(aborted[0], world_size, node, kills, certain=len(aborted) == 1) if aborted else None


def symptom(folder: Path, ended: Sequence[Ended], *, world_size: int, node: str) -> Failure:
    """What was said first, by a rank that is not its cause, where :func:`first_failure` knows none."""
    told = _told(folder, world_size)
    if not told:
        return _lost(ended[0], world_size, node, "", certain=False)
    rank, failure = next(iter(told.items()))
    said = _named(failure, rank, world_size, node, next((one.tail for one in ended if one.rank == rank), ()))
    return dataclasses.replace(said, details={**said.details, "certain": False})


def blames_others(failure: Failure) -> bool:
    """Whether a rank says only that others are gone or late."""
    return blames_connection(failure) or (failure.retryable and _LATE.search(failure.message) is not None)


def _told(folder: Path, world_size: int) -> dict[int, Failure]:
    """What the ranks of this node have written down, by rank, in the order in which they did."""
    ranks = [rank for rank in range(world_size) if result_path(folder, rank).exists()]
    ranks.sort(key=lambda rank: result_path(folder, rank).stat().st_mtime_ns)
    return {rank: result for rank in ranks if isinstance(result := read_result(result_path(folder, rank)), Failure)}


def _lost(lost: Ended, world_size: int, node: str, kills: str, *, certain: bool) -> Failure:
    place = f"rank {lost.rank} of {world_size} on {node}"
    lines = "".join(f"\n  {line}" for line in lost.tail)
    message = f"{place} {_how(lost.exit_code, kills)}{lost.was}"
    if lost.exit_code == 0:
        message += ", in the middle of the training: something in its code called sys.exit() or os._exit()"
    return Failure.of(
        RankLostError(
            f"{message}. Its last lines:{lines}" if lines else f"{message}, without a word",
            rank=lost.rank,
            node=node,
            exit_code=lost.exit_code,
            certain=certain,
            log=list(lost.tail),
        )
    )


def _mismatch(one: Ended) -> str | None:
    match = _MISMATCH.search("\n".join(one.tail))
    return match and match[0].strip()


def _mismatched(one: Ended, ended: Sequence[Ended], world_size: int, node: str) -> Failure:
    """Whom gloo ends is the one that got too much, which may well be right: the odd one out is suspected."""
    places: dict[str, list[Ended]] = {}
    for each in ended:
        places.setdefault(each.was, []).append(each)
    fewest = min(places.values(), key=len)
    odd = fewest[0] if len(places) > 1 and 2 * len(fewest) < len(ended) else one
    stood = "; ".join(
        f"rank{'s' * (len(group) > 1)} {', '.join(str(each.rank) for each in group)}{was or ' nowhere known'}"
        + "".join(f" ({each.doing})" for each in group[:1] if each.doing)
        for was, group in places.items()
    )
    message = (
        f"the ranks' collectives do not fit together: one is skipped, is only called by some of the ranks, or has "
        f"another size. Suspected, but not certain, is rank {odd.rank} of {world_size} on {node}. The ranks were: "
        f"{stood}. Rank {one.rank} was ended by: {_mismatch(one)}"
    )
    log = {"log": list(odd.tail), "certain": False}
    return Failure.of(MismatchError(message, rank=odd.rank, node=node, exit_code=one.exit_code, **log))


def blames_connection(failure: Failure) -> bool:
    """Whether a rank may have failed because another is gone: its connection broke, or NCCL's watchdog ended it."""
    if failure.type == MismatchError.__name__:
        return False
    exit_code = failure.details.get("exit_code", 0)
    if exit_code < 0:
        return bool(exit_code == -signal.SIGABRT)
    return failure.retryable and _BROKEN_CONNECTION.search(failure.message) is not None


def say_the_same(one: Failure, other: Failure) -> bool:
    """Whichever rank says it: of several that fail alike, another may be the first each time."""
    return one.type == other.type and _PLACE.sub("", one.message) == _PLACE.sub("", other.message)


def is_of_code(failure: Failure) -> bool:
    """
    Whether a failure that has come back at the same step follows from code and data alone, and not from the machine.

    torch says ``RuntimeError`` of shapes as of devices and connections.
    """
    # Names of machines and functions are no words of the error.
    said = _RECIPE_LINE.sub("", _PLACE.sub("", failure.message))
    return failure.type in _OF_CODE and not blames_others(failure) and not _OF_MACHINE.search(said)


def _how(exit_code: int, kills: str) -> str:
    if exit_code >= 0:
        return f"exited with code {exit_code} and no result"
    name = signal.Signals(-exit_code).name
    return f"was killed by {name}" + (f" ({kills})" if exit_code == -signal.SIGKILL else "")


def _told_of(failure: Failure) -> int | None:
    """The rank that a failure says it comes from, if any."""
    match = _TOLD_OF.search(failure.message)
    return int(match[1]) if match else None


def _named(failure: Failure, rank: int, world_size: int, node: str, tail: Sequence[str]) -> Failure:
    if world_size == 1:
        return failure
    told_of = failure.details.get("rank", _told_of(failure))
    if "rank" in failure.details or told_of not in (None, rank):
        # It passes on what another rank met with, or all of them.
        place = {"rank": told_of}
        message = f"{failure.message} (told by rank {rank} of {world_size} on {node})"
    else:
        place = {"rank": rank}
        message = f"{failure.message} (rank {rank} of {world_size} on {node})"
    details = {**failure.details, **place, "node": node, "certain": True, "log": list(tail)}
    return dataclasses.replace(failure, message=message, details=details)
