"""Who takes part in a gang: the rules over all orders of events, and real nodes at a real store."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousTimeoutError
from turns import on_turn

from mlops.elastic.membership import Membership, NodeId, close, complete, join, leave
from mlops.elastic.rendezvous import LOOPBACK, Meeting, Rendezvous, meet
from mlops.elastic.shared_log import GAP_SECONDS, SharedLog

KEEP_ALIVE_SECONDS = 4.0
STORE = "import sys, time\nfrom torch.distributed import TCPStore\n" + (
    "store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
    "print(store.port, flush=True)\ntime.sleep(600)\n"
)


@pytest.mark.parametrize("seed", range(300))
def test_whatever_comes_in_whatever_order_all_nodes_agree(seed: int) -> None:
    """Broken: two nodes think they are the same rank, a round takes somebody in late, or nobody can start again."""
    chance = random.Random(seed)
    least = chance.randint(1, 4)
    start = Membership(least, chance.randint(least, 6))
    nodes = [NodeId(f"host{number}", 1, 0) for number in range(chance.randint(least, 8))]
    log: list[dict[str, Any] | None] = []
    now = start
    for _ in range(60):
        node = chance.choice(nodes)
        came = chance.choice([*now.members.values(), chance.randint(0, len(log))])  # or one that it has no longer
        events = [join(node)] * 6 + [leave(node, came)] * 3
        log.append(chance.choice([*events, complete(now.round), complete(now.round - 1), None]))
        before, now = now, now.after(log[-1:])
        check(now)
        if before.round == now.round and before.complete:
            assert now.complete, "a round does not open again"
            assert now.ranks == before.ranks, "ranks of a round do not change"
            assert now.participants.items() <= before.participants.items(), "nobody comes in late"
        assert now.round in (before.round, before.round + 1)
    late = start  # a node that reads the same in other portions
    while late.length < len(log):
        late = late.after(log[late.length : late.length + chance.randint(1, 7)])
    assert late == now
    # From wherever they are: all start again, and those that are gone are found to be.
    living = chance.sample(nodes, chance.randint(least, len(nodes)))
    for node, came in now.members.items():
        if node not in living:
            now = now.after([leave(node, came)])
    starting = living
    for _ in range(3):  # who came late makes the others start once more, as agents do
        for node in chance.sample(starting, len(starting)):
            now = now.after([join(node)])
        now = now.after([complete(now.round)])
        check(now)
        starting = list(now.participants)
    assert now.complete
    assert len(now.participants) == min(len(living), start.max_nodes)
    assert set(now.members) == set(living)
    assert now.after([close()]).closed


def check(now: Membership) -> None:
    assert not now.participants.keys() & now.waiting.keys()
    assert len(now.participants) <= now.max_nodes
    assert now.complete or not now.waiting
    assert now.complete or len(now.participants) < now.max_nodes
    if now.complete:
        assert sorted(now.ranks.values()) == list(range(len(now.ranks)))
        assert now.participants.keys() <= now.ranks.keys()


@pytest.fixture
def store() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A store in a process of its own, and its port."""
    with subprocess.Popen([sys.executable, "-c", STORE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.send_signal(signal.SIGCONT)
        process.kill()


@pytest.fixture
def gather(store: tuple[subprocess.Popen[str], int]) -> Callable[..., list[Rendezvous]]:
    def gather(number: int, **changes: Any) -> list[Rendezvous]:
        settings = {
            "min_nodes": 1, "max_nodes": number, "join_seconds": 60.0, "keep_alive_seconds": KEEP_ALIVE_SECONDS
        } | changes  # fmt: skip
        meeting = Meeting(
            run_id="gang",
            endpoint=f"{LOOPBACK}:{store[1]}",
            host_store=False,
            local_addr=LOOPBACK,
            **settings,
        )
        return [meet(meeting) for _ in range(number)]

    return gather


def next_round(nodes: Sequence[Rendezvous]) -> list[Any]:
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(Rendezvous.next_rendezvous, nodes))


def wait_until(happened: Callable[[], bool], seconds: float = 30) -> float:
    start = time.monotonic()
    while not happened():
        assert time.monotonic() < start + seconds
        time.sleep(0.02)
    return time.monotonic() - start


@contextmanager
def ended(nodes: Sequence[Rendezvous]) -> Iterator[None]:
    try:
        yield
    finally:
        for node in nodes:
            node.fall_silent()


@on_turn(0, 2)
def test_many_nodes_come_go_and_come_back(gather: Callable[..., list[Rendezvous]]) -> None:
    """Broken: a gang of many nodes never comes together, or loses one that lives, or keeps one that does not."""
    # All in one process on a busy machine: it takes a while until each has been heard.
    nodes = gather(48, min_nodes=40, keep_alive_seconds=8.0)
    with ended(nodes):
        told = next_round(nodes)
        assert sorted(one.rank for one in told) == list(range(48))
        assert {one.world_size for one in told} == {48}
        assert len({(one.bootstrap_store_info.master_port) for one in told}) == 1
        assert {node.round for node in nodes} == {0}
        lost = [nodes[0], nodes[1], nodes[2], nodes[30]]  # three of them listened to all others
        living = [node for node in nodes if node not in lost]
        for node in lost:
            node.fall_silent()
        wait_until(lambda: all(node.num_nodes_waiting() == 0 and node.num_nodes == 44 for node in living))
        told = next_round(living)
        assert sorted(one.rank for one in told) == list(range(44))
        assert {node.round for node in living} == {1}
        (late,) = gather(1, min_nodes=40, max_nodes=48, keep_alive_seconds=8.0)
        with ThreadPoolExecutor(1) as pool, ended([late]):
            coming = pool.submit(late.next_rendezvous)
            wait_until(lambda: all(node.num_nodes_waiting() == 1 for node in living))
            next_round(living)
            assert coming.result(30).world_size == 45
            living[5].leave()
            wait_until(lambda: all(node.num_nodes == 44 for node in [late, *living[:5]]))
            living[7].shutdown()
            assert all(node.is_closed() for node in living)
            with pytest.raises(RendezvousClosedError):
                living[9].next_rendezvous()


def test_more_nodes_than_are_wanted_wait_for_a_place(gather: Callable[..., list[Rendezvous]]) -> None:
    """Broken: a spare node makes a whole gang start again, and again."""
    nodes = gather(3, max_nodes=2)
    with ended(nodes), ThreadPoolExecutor(3) as pool:
        coming = {pool.submit(node.next_rendezvous): node for node in nodes}
        wait_until(lambda: sum(one.done() for one in coming) == 2)
        inside = [node for one, node in coming.items() if one.done()]
        (spare,) = [node for one, node in coming.items() if not one.done()]
        time.sleep(2 * KEEP_ALIVE_SECONDS)  # it lives, and is not wanted
        assert [node.num_nodes_waiting() for node in inside] == [0, 0]
        inside[0].leave()
        wait_until(lambda: inside[1].num_nodes_waiting() == 1)
        assert inside[1].next_rendezvous().world_size == 2
        wait_until(lambda: all(one.done() for one in coming))
        assert spare.num_nodes == 2


def test_too_few_nodes_give_up(gather: Callable[..., list[Rendezvous]]) -> None:
    """Broken: it waits for ever, or stays a member that nobody hears of again."""
    nodes = gather(2, min_nodes=3, max_nodes=3, join_seconds=1.0)
    with ended(nodes), pytest.raises(RendezvousTimeoutError):
        next_round(nodes)


def test_an_entry_that_is_not_there_yet_holds_all_up_alike(
    gather: Callable[..., list[Rendezvous]], store: tuple[subprocess.Popen[str], int]
) -> None:
    """Broken: a node that cannot read its own entry yet takes part in the round that it left, or joins many times."""
    nodes = gather(2, min_nodes=2)
    with ended(nodes):
        next_round(nodes)
        log = PrefixStore("mlops/gang/log", TCPStore(LOOPBACK, store[1]))
        log.add("length", 1)
        assert [one.world_size for one in next_round(nodes)] == [2, 2]
        assert [node.round for node in nodes] == [1, 1]
        assert log.add("length", 0) == 5, "two joins a round, and the one that was never written"


def test_a_first_node_that_is_lost_at_once_holds_nobody_up(gather: Callable[..., list[Rendezvous]]) -> None:
    """Broken: the others wait for the address at which their ranks meet until the store's own timeout, and give up."""
    first, second, third = gather(3, min_nodes=2, max_nodes=2)
    with ended([first, second, third]), ThreadPoolExecutor(2) as pool:
        first._show_life()
        first._log.append(join(first._node))
        coming = pool.submit(second.next_rendezvous)
        wait_until(lambda: second.num_nodes == 2)
        first.fall_silent()
        assert third.next_rendezvous().world_size == 2
        assert coming.result(30).world_size == 2
        assert second.round == third.round >= 1


def test_a_node_that_waits_for_a_key_is_heard(gather: Callable[..., list[Rendezvous]]) -> None:
    """Broken: an agent that waits for others, at the end of a training say, is held for lost."""
    nodes = gather(4)
    with ended(nodes), ThreadPoolExecutor(1) as pool:
        next_round(nodes)
        waits = pool.submit(nodes[0].key_value_store.wait, ["late"], timedelta(seconds=60))
        time.sleep(3 * KEEP_ALIVE_SECONDS)
        assert [node.num_nodes for node in nodes[1:] if node.num_nodes_waiting() == 0] == [4] * 3
        nodes[1].key_value_store.set("late", "")
        waits.result(30)


@on_turn(1, 2)
def test_a_store_that_stood_still_costs_no_node(
    gather: Callable[..., list[Rendezvous]], store: tuple[subprocess.Popen[str], int]
) -> None:
    """Broken: nobody could be heard for a while, and all are held for lost."""
    nodes = gather(5)
    with ended(nodes):
        next_round(nodes)
        os.kill(store[0].pid, signal.SIGSTOP)
        time.sleep(3 * KEEP_ALIVE_SECONDS)
        os.kill(store[0].pid, signal.SIGCONT)
        end = time.monotonic() + 2 * KEEP_ALIVE_SECONDS
        while time.monotonic() < end:
            assert [(node.num_nodes_waiting(), node.num_nodes) for node in nodes] == [(0, 5)] * 5
            time.sleep(0.1)


def test_an_entry_that_was_never_written_is_passed_over(store: tuple[subprocess.Popen[str], int]) -> None:
    """Broken: a node that dies between two calls holds up all others for ever; or its entry counts for some only."""
    client = TCPStore(LOOPBACK, store[1])
    ours = PrefixStore("log", client)
    log, other = SharedLog(ours), SharedLog(PrefixStore("log", TCPStore(LOOPBACK, store[1])))
    log.append("first")
    ours.add("length", 1)
    for number in range(3000):  # more than are read at once
        log.append(number)
    assert log.read(0) == other.read(0) == ["first"]
    time.sleep(GAP_SECONDS)
    assert log.read(0) == ["first", None, *range(3000)]
    assert other.read(1) == [None, *range(3000)]
    assert ours.compare_set("1", "", '"late"') == b"null", "who comes back late sees that it did"


def test_entries_of_many_writers_are_all_there(store: tuple[subprocess.Popen[str], int], tmp_path: Path) -> None:
    """Broken: two nodes take one number, and one of them has never come."""

    def write(writer: int) -> None:
        log = SharedLog(PrefixStore("log", TCPStore(LOOPBACK, store[1])))
        for number in range(50):
            log.append([writer, number])

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(write, range(12)))
    entries = SharedLog(PrefixStore("log", TCPStore(LOOPBACK, store[1]))).read(0)
    assert sorted(entries) == [[writer, number] for writer in range(12) for number in range(50)]
    for writer in range(12):
        assert [number for which, number in entries if which == writer] == list(range(50))
