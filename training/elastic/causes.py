"""What went wrong first, of all that goes wrong when one rank of a gang fails."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlops_provider.refs import Ref
from mlops_provider.step import INTERRUPTED, Failure, StepError, read_result

_CGROUP_EVENTS = Path("/sys/fs/cgroup/memory.events")
_BROKEN_CONNECTION = re.compile(
    r"connection (?:reset|closed|refused|was )|broken pipe|gloo/transport|nccl (?:communicator )?(?:error|was aborted)"
    r"|remote process exited",
    re.IGNORECASE,
)
_PLACE = re.compile(r"rank \d+ of \d+ on \S+")


class RankLostError(StepError):
    """A rank's process ended without saying why: killed, out of memory, crashed."""


class NodesLostError(StepError):
    """Too few nodes are left, or came, to go on. A retry goes on from the last checkpoint."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A rank whose process ended."""

    rank: int
    exit_code: int
    """Minus the signal that killed it."""
    tail: Sequence[str]
    """Its last lines."""
    was: str
    """Its last heartbeat, in words."""

    @property
    def interrupted(self) -> bool:
        """It was asked to end."""
        return self.exit_code in (INTERRUPTED, -signal.SIGTERM)


def result_path(folder: Path, rank: int) -> Path:
    """Each rank writes a result document of its own, so that none hides another's."""
    return folder / f"result-{rank}.json"


def committed(folder: Path, ranks: Sequence[int]) -> Ref | None:
    """The ref that a rank has committed: the work is done, whatever fails afterwards."""
    results = (read_result(result_path(folder, rank)) for rank in ranks)
    return next((result for result in results if isinstance(result, Ref)), None)


def first_failure(folder: Path, ended: Sequence[Ended], *, world_size: int, node: str, oom_kills: int) -> Failure:
    """
    The cause, named after its rank: what cannot be retried; else who was killed; else who first said an error.

    A rank that fails makes the others fail, whose connections to it break: they say so, but later. An abort may be
    NCCL's watchdog, which ends a rank that waits for a failed one.

    :param ended: those that failed, and were not asked to end
    :param oom_kills: processes that the kernel killed in this container for want of memory, since the gang's start
    """
    ranks = [rank for rank in range(world_size) if result_path(folder, rank).exists()]
    ranks.sort(key=lambda rank: result_path(folder, rank).stat().st_mtime_ns)
    told = {rank: result for rank in ranks if isinstance(result := read_result(result_path(folder, rank)), Failure)}
    final = [rank for rank, failure in told.items() if not failure.retryable]
    killed = [one for one in ended if one.exit_code < 0 and one.exit_code != -signal.SIGABRT]
    silent = [one for one in ended if one.rank not in told]
    if final or (told and not killed):
        rank = (final or list(told))[0]
        return _named(told[rank], rank, world_size, node, next((one.tail for one in ended if one.rank == rank), ()))
    lost = (killed or silent)[0]
    place = f"rank {lost.rank} of {world_size} on {node}"
    lines = "".join(f"\n  {line}" for line in lost.tail)
    message = f"{place} {_how(lost.exit_code, oom_kills)}{lost.was}"
    return Failure.of(
        RankLostError(
            f"{message}. Its last lines:{lines}" if lines else f"{message}, without a word",
            rank=lost.rank,
            node=node,
            exit_code=lost.exit_code,
            log=list(lost.tail),
        )
    )


def blames_connection(failure: Failure) -> bool:
    """Whether a rank may have failed because another is gone: its connection broke, or NCCL's watchdog ended it."""
    exit_code = failure.details.get("exit_code", 0)
    if exit_code < 0:
        return bool(exit_code == -signal.SIGABRT)
    return failure.retryable and _BROKEN_CONNECTION.search(failure.message) is not None


def say_the_same(one: Failure, other: Failure) -> bool:
    """Whichever rank says it: of several that fail alike, another may be the first each time."""
    return one.type == other.type and _PLACE.sub("", one.message) == _PLACE.sub("", other.message)


def oom_kills() -> int:
    """Of this container, as the kernel counts them; 0 where it does not say."""
    if not _CGROUP_EVENTS.exists():
        return 0
    counts: Mapping[str, str] = dict(line.split() for line in _CGROUP_EVENTS.read_text().splitlines())
    return int(counts.get("oom_kill", 0))


def _how(exit_code: int, oom_kills: int) -> str:
    if exit_code >= 0:
        return f"exited with code {exit_code} and no result"
    name = signal.Signals(-exit_code).name
    if exit_code != -signal.SIGKILL:
        return f"was killed by {name}"
    why = "the kernel, for want of memory: lower train.micro_batch or give the node more" if oom_kills else name
    return f"was killed by {why}" + ("" if oom_kills else ", most likely for want of memory")


def _named(failure: Failure, rank: int, world_size: int, node: str, tail: Sequence[str]) -> Failure:
    if world_size == 1:
        return failure
    return dataclasses.replace(
        failure,
        message=f"{failure.message} (rank {rank} of {world_size} on {node})",
        details={**failure.details, "rank": rank, "node": node, "log": list(tail)},
    )
