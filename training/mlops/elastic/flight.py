"""
What NCCL's flight recorders say about whom each rank waits for.

A GPU works behind its program: ranks that wait in a collective stand at the next number that they read, as does the one
that never came to it. torch records the last collectives of each rank, and dumps them when somebody writes to a pipe.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

DUMP_SECONDS = 6.0
"""For the dumps to be written: torch looks at its pipes once a second."""
_DUMPS, _PIPES = "flight-", "nccl-"
_KEPT = (
    "process_group", "collective_seq_id", "p2p_seq_id", "is_p2p", "profiling_name", "state", "input_sizes",
    "output_sizes", "input_dtypes", "output_dtypes", "time_created_ns",
)  # fmt: skip
_DONE = "completed"
_TRANSFER = re.compile(r"\d+")
Record = Mapping[str, Any]
"""What one rank's recorder says, as JSON: see :func:`record`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitGraph:
    waits: Mapping[int, Sequence[int]]
    """For each rank that waits, the ranks that it waits for."""
    roots: Sequence[int]
    """Ranks that are waited for, and wait for nobody."""
    unknown: Sequence[int]
    """Ranks that have said nothing."""
    text: str
    """All of it, in words."""


def environment(folder: Path) -> dict[str, str]:
    """The variables that have a rank's process record, and dump to the folder."""
    return {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": str(folder / _DUMPS),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(folder / _PIPES),
    }


def request_dumps(folder: Path, ranks: Sequence[int], seconds: float = DUMP_SECONDS) -> list[Path]:
    """
    Have the ranks dump what they recorded, and wait for it.

    :return: the dumps, of ranks that use NCCL and could write them
    """
    asked = [rank for rank in ranks if _asked(folder / f"{_PIPES}{rank}.pipe")]
    deadline = time.monotonic() + seconds
    sizes: dict[int, int] = {}
    while time.monotonic() < deadline:
        now = {rank: path.stat().st_size for rank in asked if (path := folder / f"{_DUMPS}{rank}").exists()}
        if len(now) == len(asked) and now == sizes and all(now.values()):
            break
        sizes = now
        time.sleep(0.2)
    return [path for rank in ranks if (path := folder / f"{_DUMPS}{rank}").exists()]


def _asked(pipe: Path) -> bool:
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.ENXIO:  # nobody reads it any more
            return False
        raise
    try:
        os.write(descriptor, b"1\n")
    finally:
        os.close(descriptor)
    return True


def read_records(dumps: Sequence[Path]) -> list[Record]:
    """Read the records that are whole."""
    # Here, as below: these imports are needed only where something hangs.
    from torch.distributed.flight_recorder.components.loader import read_dump

    found = []
    for path in dumps:
        try:
            found.append(record(read_dump(_DUMPS, str(path))))
        except (EOFError, UnpicklingError):  # cut off in the middle
            continue
    return found


def record(dump: Mapping[str, Any]) -> Record:
    """
    What is needed of a dump: of each process group the collectives that are not done, and the last that was begun.

    :param dump: as torch's ``read_dump`` returns it
    """
    last: dict[str, dict[str, Any]] = {}
    pending = []
    for entry in dump["entries"]:
        kept = {key: entry[key] for key in _KEPT if key in entry}
        if not entry.get("is_p2p"):
            last[entry["process_group"][0]] = kept
        if entry["state"] != _DONE:
            pending.append(kept)
    return {"rank": dump["rank"], "groups": dump["pg_config"], "pending": pending, "last": list(last.values())}


def wait_graph(records: Sequence[Record]) -> WaitGraph:
    """
    Who waits for whom: in a collective that is not done a rank waits for those that have not come to it yet; in a
    transfer for the other side, where that one does not stand in it.
    """
    from torch.distributed.flight_recorder.components.builder import build_groups_memberships

    by_rank = {int(each["rank"]): each for each in records}
    _, _, _, members, ids = build_groups_memberships({rank: each["groups"] for rank, each in by_rank.items()})
    come = {
        (rank, ids[entry["process_group"][0], rank]): entry["collective_seq_id"]
        for rank, each in by_rank.items()
        for entry in (*each["last"], *each["pending"])
        if not entry.get("is_p2p")
    }
    waits: dict[int, set[int]] = {}
    said: list[str] = []
    for rank, each in sorted(by_rank.items()):
        for entry in each["pending"]:
            group = ids[entry["process_group"][0], rank]
            if entry.get("is_p2p"):
                late = _other_side(entry, members[group], by_rank)
            else:
                late = {peer for peer in members[group] if come.get((peer, group), -1) < entry["collective_seq_id"]}
            if late - {rank}:
                waits.setdefault(rank, set()).update(late - {rank})
                said.append(f"rank {rank} waits in {_name(entry)} for {list_ranks(late - {rank})}")
    waited = set().union(*waits.values()) if waits else set()
    roots = sorted(waited - set(waits))
    unknown = sorted({rank for ranks in members.values() for rank in ranks} - set(by_rank))
    said += _mismatches(by_rank, members, ids)
    if roots:
        said.append(f"{list_ranks(set(roots))} {'waits' if len(roots) == 1 else 'wait'} for nobody")
    if unknown:
        said.append(f"{list_ranks(set(unknown))} said nothing")
    return WaitGraph(
        waits={rank: sorted(late) for rank, late in waits.items()}, roots=roots, unknown=unknown, text="; ".join(said)
    )


def _other_side(entry: Record, members: set[int], by_rank: Mapping[int, Record]) -> set[int]:
    """The rank of the other end of a transfer, unless it stands in it too."""
    name = entry["profiling_name"].partition(":")[2]
    mine, other = map(int, _TRANSFER.findall(name))
    wanted = f"recv {other}<-{mine}" if name.startswith("send") else f"send {other}->{mine}"
    # Their numbers are those within the group.
    rank = sorted(members)[other]
    pending = by_rank[rank]["pending"] if rank in by_rank else ()
    here = any(each["profiling_name"].partition(":")[2] == wanted for each in pending)
    return set() if here else {rank}


def _mismatches(by_rank: Mapping[int, Record], members: Mapping[str, set[int]], ids: Mapping[Any, str]) -> list[str]:
    """Collectives of one number that are not the same on all ranks."""
    from torch.distributed.flight_recorder.components.types import COLLECTIVES, MatchState, Op

    differ = {
        MatchState.COLLECTIVE_TYPE_MISMATCH,
        MatchState.SIZE_OR_SYNTAX_MISMATCH,
        MatchState.COLLECTIVE_DTYPE_MISMATCH,
    }
    met: dict[tuple[str, int], tuple[int, Record]] = {}
    said = []
    for rank, each in sorted(by_rank.items()):
        for entry in each["pending"]:
            if entry.get("is_p2p") or entry["profiling_name"].partition(":")[2] not in COLLECTIVES:
                continue
            group = ids[entry["process_group"][0], rank]
            first_rank, first = met.setdefault((group, entry["collective_seq_id"]), (rank, entry))
            found = Op(dict(first), dict(members), group).match(Op(dict(entry), dict(members), group))
            if found.state in differ:
                said.append(f"rank {first_rank} is in {_name(first)} where rank {rank} is in {_name(entry)}")
    return said


def _name(entry: Record) -> str:
    number = entry["p2p_seq_id"] if entry.get("is_p2p") else entry["collective_seq_id"]
    name = entry["profiling_name"].partition(":")[2]
    return f"{name} {entry['input_sizes']} (number {number} of group {entry['process_group'][1]})"


def list_ranks(ranks: Collection[int]) -> str:
    """``rank 3``, or ``ranks 1, 2, ...``: the first eight."""
    shown = ", ".join(map(str, sorted(ranks)[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
