"""Dumps in the format of torch's flight recorder, made by hand."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mlops.elastic.flight import WaitGraph, read_records, request_dumps, wait_graph
from mlops.elastic.suspects import RankState, judge

WORLD = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
PAIRS = WORLD | {
    "1": {"name": "1", "desc": "mesh_tp", "ranks": "[0, 1]"},
    "2": {"name": "2", "desc": "mesh_tp", "ranks": "[2, 3]"},
}


def entry(number: int, state: str, name: str = "all_reduce", group: str = "0", size: int = 8) -> dict[str, Any]:
    """As ``FlightRecorder::getCollectiveTrace`` of torch 2.13 writes it, version 2.10."""
    p2p = name.startswith(("send", "recv"))
    desc = (WORLD | PAIRS)[group]["desc"]
    return {
        "frames": [], "record_id": number, "pg_id": int(group), "process_group": (group, desc),
        "collective_seq_id": 0 if p2p else number, "p2p_seq_id": number if p2p else 0, "op_id": number,
        "profiling_name": f"nccl:{name}", "time_created_ns": number, "duration_ms": None, "timeout_ms": 600_000,
        "is_p2p": p2p, "input_sizes": [[size]], "input_dtypes": ["Float"], "output_sizes": [[size]],
        "output_dtypes": ["Float"], "state": state, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": state == "completed",
    }  # fmt: skip


def dumped(folder: Path, ranks: Mapping[int, Sequence[dict[str, Any]]], groups: dict[str, Any]) -> WaitGraph:
    paths = []
    for rank, entries in ranks.items():
        mine = {name: group for name, group in groups.items() if str(rank) in group["ranks"]}
        dump = {"version": "2.10", "entries": entries, "pg_config": mine, "pg_status": {}}
        paths.append(folder / f"flight-{rank}")
        paths[-1].write_bytes(pickle.dumps(dump))
    return wait_graph(read_records(paths))


BEFORE, WAITS = entry(6, "completed"), entry(7, "started")


def test_the_rank_that_did_not_come_is_the_root(tmp_path: Path) -> None:
    """Broken: on GPUs, where all ranks stand at the next number that they read, nobody would be named."""
    graph = dumped(tmp_path, {0: [BEFORE, WAITS], 1: [BEFORE], 2: [BEFORE, WAITS], 3: [BEFORE, WAITS]}, WORLD)
    assert (graph.roots, graph.unknown) == ([1], [])
    assert graph.waits == {0: [1], 2: [1], 3: [1]}
    assert "rank 0 waits in all_reduce [[8]] (number 7 of group default_pg) for rank 1" in graph.text


def test_a_chain_of_waits_leads_to_its_end(tmp_path: Path) -> None:
    """Broken: rank 2, for which the others wait, would be taken for the cause, though it waits for rank 3 itself."""
    pair = entry(4, "started", "_allgather_base", "2")
    graph = dumped(tmp_path, {0: [WAITS], 1: [WAITS], 2: [BEFORE, pair], 3: [BEFORE]}, PAIRS)
    assert graph.roots == [3]
    assert graph.waits == {0: [2, 3], 1: [2, 3], 2: [3]}


def test_a_transfer_waits_for_its_other_side(tmp_path: Path) -> None:
    """Broken: the stage of a pipeline that stands still would not be told from its neighbours."""
    recv = entry(3, "started", "recv 1<-0")
    graph = dumped(tmp_path, {0: [], 1: [recv], 2: [entry(3, "started", "recv 2<-1")], 3: []}, WORLD)
    assert (graph.roots, graph.waits) == ([0], {1: [0], 2: [1]})
    graph = dumped(tmp_path, {0: [entry(3, "started", "send 0->1")], 1: [recv], 2: [], 3: []}, WORLD)
    assert (graph.roots, graph.waits) == ([], {})


@pytest.mark.parametrize(
    "other", [entry(7, "started", "broadcast"), entry(7, "started", size=9)], ids=["another collective", "another size"]
)
def test_collectives_that_differ_are_said(tmp_path: Path, other: dict[str, Any]) -> None:
    """Broken: all wait for each other, and nobody would be told that their collectives do not fit."""
    graph = dumped(tmp_path, {0: [WAITS], 1: [other], 2: [WAITS], 3: [WAITS]}, WORLD)
    assert (graph.roots, graph.waits) == ([], {})
    assert "rank 0 is in all_reduce [[8]]" in graph.text
    assert "where rank 1 is in" in graph.text


def test_a_rank_without_a_dump_is_waited_for_but_not_known(tmp_path: Path) -> None:
    """Broken: what could not be seen would be passed over, or be taken for certain."""
    graph = dumped(tmp_path, {0: [WAITS], 1: [WAITS], 3: [WAITS]}, WORLD)
    assert (graph.roots, graph.unknown) == ([2], [2])


def test_dumps_are_asked_for_by_torch_s_pipes(tmp_path: Path) -> None:
    """Broken: the recorders would be read only where NCCL's own watchdog came first."""
    pipe = tmp_path / "nccl-0.pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.mkfifo(tmp_path / "nccl-1.pipe")  # of a process that is gone
    answer = threading.Timer(0.3, (tmp_path / "flight-0").write_bytes, args=(pickle.dumps(BEFORE)[:-9],))
    answer.start()
    assert request_dumps(tmp_path, [0, 1, 2], seconds=5) == [tmp_path / "flight-0"]
    assert os.read(reader, 10)
    os.close(reader)
    assert read_records([tmp_path / "flight-0"]) == [], "it is cut off"


def test_the_recorders_decide_where_stacks_leave_a_doubt(tmp_path: Path) -> None:
    """Broken: as all ranks of a GPU training stand in the same place, none would be named."""
    graph = dumped(tmp_path, {0: [BEFORE, WAITS], 1: [BEFORE], 2: [BEFORE, WAITS], 3: [BEFORE, WAITS]}, WORLD)
    states = [
        RankState(
            rank=rank, node="n", step=7, beats=5, phase="talk", seconds=9.0, state="running", doing="in item", busy=1.0
        )
        for rank in range(4)
    ]
    assert not judge(states).certain
    verdict = judge(states, graph)
    assert (verdict.suspect, verdict.certain) == (states[1], True)
    absent = dumped(tmp_path, {0: [WAITS], 2: [WAITS], 3: [WAITS]}, WORLD)
    assert not judge(states, absent).certain
