from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from gangs import kill, started
from torch.distributed import TCPStore

from mlops.contract.refs import DatasetRef
from mlops.contract.step import INTERRUPTED, Failure
from mlops.elastic.failure_attribution import Ended, blames_connection, first_failure, say_the_same, symptom
from mlops.elastic.memory import memory_kills, say_kills
from mlops.elastic.rendezvous import LOOPBACK, Meeting, meet

DIES = """
import os, signal, sys
from mlops.elastic.rendezvous import LOOPBACK, Meeting, meet
meeting = Meeting(
    run_id="gang", endpoint=sys.argv[1], host_store=False, min_nodes=1, max_nodes=2, local_addr=sys.argv[2],
    join_seconds=60.0, keep_alive_seconds=3.0,
)
told = meet(meeting).next_rendezvous()
print(told.rank, told.world_size, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""A node that is lost as soon as it knows its rank."""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def test_a_store_that_falls_silent_is_given_up_in_seconds() -> None:
    """Broken: a node that lost its power would stop all others for a quarter of an hour, deaf to SIGTERM."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = Meeting(
        run_id="x", endpoint=f"127.0.0.1:{store.port}", host_store=False, min_nodes=1, max_nodes=1,
        local_addr="127.0.0.1", join_seconds=5, keep_alive_seconds=6,
    )  # fmt: skip
    rendezvous = meet(meeting)
    milliseconds = []
    for connection in psutil.Process().net_connections("tcp"):
        if connection.raddr and connection.raddr.port == store.port:
            with socket.socket(fileno=os.dup(connection.fd)) as same:
                milliseconds.append(same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    assert milliseconds
    assert set(milliseconds) == {20_000}
    rendezvous.shutdown()


def starts(notes: list[dict[str, Any]], rank: int = 0) -> list[tuple[int, int]]:
    """World size and step of each start."""
    return [(note["world"], note["starts"]) for note in notes if "starts" in note and note["rank"] == rank]


@pytest.mark.gang
def test_a_killed_worker_is_replaced_within_the_try(tmp_path: Path) -> None:
    """Broken: Airflow would start everything anew, with its retry delay, for one lost process."""
    with started(tmp_path, "--nproc-per-node=2", "--max-restarts=1", do={"1:10": KILL}) as gang:
        assert isinstance(gang.result(), DatasetRef), gang.log
    assert starts(gang.notes) == [(2, 0), (2, 10)]
    assert gang.process.returncode == 0


@pytest.mark.gang
def test_an_error_that_stays_is_not_tried_again(tmp_path: Path) -> None:
    """Broken: a NaN would be computed four times before anyone hears of it, or its cause be hidden by the others'."""
    do = {"1:10!": "raise BadDataError('the labels are letters')"}
    with started(tmp_path, "--nproc-per-node=2", "--max-restarts=3", do=do) as gang:
        failure = gang.result()
    assert isinstance(failure, Failure), gang.log
    assert (failure.type, failure.retryable) == ("BadDataError", False)
    assert failure.message.startswith("the labels are letters (rank 1 of 2 on ")
    assert starts(gang.notes) == [(2, 0)]


@pytest.mark.gang
@pytest.mark.parametrize(
    ("do", "gives_up"),
    [({"1:5!": KILL}, True), ({"1:5": KILL, "0:10": KILL, "1:15": KILL}, False)],
    ids=["at the same step", "each time further"],
)
def test_restarts_are_limited_where_they_do_not_help(tmp_path: Path, do: dict[str, str], gives_up: bool) -> None:
    """Broken: a gang that cannot pass a step would go on for ever, or a long run end after its third preemption."""
    with started(tmp_path, "--nproc-per-node=2", "--max-restarts=1", do=do) as gang:
        result = gang.result()
    if gives_up:
        assert isinstance(result, Failure), gang.log
        assert (result.type, result.retryable, result.details["rank"]) == ("RankLostError", True, 1)
        assert "rank 1 of 2" in result.message
        assert "SIGKILL" in result.message
        assert "at step 5, forward" in result.message
        assert "given up after 1 restarts" in result.message
    else:
        assert isinstance(result, DatasetRef), gang.log
        assert starts(gang.notes) == [(2, 0), (2, 5), (2, 10), (2, 15)]


@pytest.mark.gang
def test_more_processes_than_the_system_allows_files_are_refused(tmp_path: Path) -> None:
    """Broken: after minutes of connecting some rank would say "too many open files", and be started again."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with started(tmp_path, f"--nproc-per-node={allowed}") as gang:
        failure = gang.result()
    assert isinstance(failure, Failure), gang.log
    assert (failure.type, failure.retryable) == ("BadConfigError", False)
    assert f"{4 * allowed + 256} open files in one process, and the system allows {allowed}" in failure.message
    assert "raise the hard limit" in failure.message


@pytest.mark.gang
def test_workers_may_save_before_they_are_killed(tmp_path: Path) -> None:
    """Broken: a preemption would cost all steps since the last checkpoint."""
    with started(tmp_path, "--nproc-per-node=2", "--max-restarts=3", STEPS=100000) as gang:
        gang.wait_for_step(5)
        gang.process.terminate()
        assert gang.process.wait(60) == INTERRUPTED, gang.log
    assert {note["rank"] for note in gang.notes if "interrupted" in note} == {0, 1}
    assert gang.result() is None


@pytest.mark.gang
def test_nothing_outlives_a_killed_agent(tmp_path: Path) -> None:
    """Broken: the workers would train on beside their own retry."""
    with started(tmp_path, "--nproc-per-node=2", STEPS=100000) as gang:
        gang.wait_for_step(5)
        tree = psutil.Process(gang.process.pid).children(recursive=True)
        gang.process.kill()
        _, alive = psutil.wait_procs(tree, timeout=30)
        assert len(tree) >= 3
        assert not alive


@pytest.mark.gang
@pytest.mark.parametrize(
    ("raised", "said", "retryable"),
    [
        ("RuntimeError('mat1 and mat2 shapes cannot be multiplied')", "the same came after a restart", False),
        ("RuntimeError('CUDA error: an illegal memory access')", "given up after 1 restarts", True),
        ("OSError('No space left on device')", "given up after 1 restarts", True),
    ],
    ids=["code", "device", "disk"],
)
def test_an_error_that_comes_back_is_not_tried_again(tmp_path: Path, raised: str, said: str, retryable: bool) -> None:
    """Broken: a mistake in the user's loss would start the gang twelve times, each with all its data to load."""
    with started(tmp_path, "--nproc-per-node=2", "--max-restarts=3", do={"1:5!": f"raise {raised}"}) as gang:
        failure = gang.result()
    assert isinstance(failure, Failure), gang.log
    assert (failure.type, failure.retryable) == (raised.partition("(")[0], retryable)
    assert said in failure.message
    assert starts(gang.notes) == [(2, 0), (2, 5)]


def test_the_same_error_counts_as_such_whichever_rank_tells_it() -> None:
    """Broken: of ranks that all fail, another is the first each time, and the gang would start four times."""
    first, second, other = (
        Failure("TypeError", f"{what} (rank {rank} of 2 on n/{rank})", True, {})
        for what, rank in (("no len()", 0), ("no len()", 1), ("no sum()", 1))
    )
    assert say_the_same(first, second)
    assert not say_the_same(second, other)
    assert not say_the_same(first, replace(first, type="ValueError"))


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Of a rendezvous that outlives every node."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield f"127.0.0.1:{store.port}"
    del store  # with its last reference it ends


def join(folder: Path, endpoint: str, name: str, *, address: str = LOOPBACK, **environment: Any) -> Any:
    options = ["--nnodes=1:2", "--max-restarts=0", f"--rdzv-endpoint={endpoint}", "--no-host-store"]
    options += [f"--local-addr={address}", "--keep-alive-seconds=3", f"--node-name={name}"]
    return started(folder, *options, name=f"{name}.json", **environment)


@pytest.mark.gang
@pytest.mark.parametrize("goes", ["evicted", "lost"])
def test_nodes_come_and_go(tmp_path: Path, endpoint: str, goes: str) -> None:
    """
    Broken: a run on spot machines would end with its first node, or never use those that come back. No restart is
    allowed, for none is charged: not even where the connections to a lost node break before it counts as lost.
    """
    with join(tmp_path, endpoint, "a", STEPS=100000) as first:
        first.wait_for_step(5)
        with join(tmp_path, endpoint, "b", STEPS=100000) as second:
            second.wait_for(lambda notes: (2, 0) not in starts(notes) and any(w == 2 for w, _ in starts(notes)))
            (came,) = [step for world, step in starts(second.notes) if world == 2]
            assert came == max(note["interrupted"] for note in second.notes if "interrupted" in note), "nothing lost"
            second.wait_for_step(came + 20)
            if goes == "lost":
                kill(first.process.pid)
            else:
                first.process.send_signal(signal.SIGTERM)
            second.wait_for(lambda notes: starts(notes)[-1][0] == 1 and starts(notes)[-1][1] > came)
            left = starts(second.notes)[-1][1]
            second.wait_for(
                lambda notes: [each.kind for each in second.noted if each.kind == "started"] == ["started"] * 3
            )
            assert goes == "evicted" or "node_lost" in {each.kind for each in second.noted}
            told = [(each.node, each.said) for each in second.noted if each.kind == "interrupted"]
            assert told == ([("a", "a got SIGTERM")] if goes == "evicted" else [])
            if goes == "evicted":
                assert left == max(note["interrupted"] for note in second.notes if "interrupted" in note)
            second.wait_for_step(left + 5)


@pytest.mark.gang
@pytest.mark.parametrize(("ours", "its", "rank"), [("localhost", LOOPBACK, 0), (LOOPBACK, "localhost", 1)])
def test_a_node_that_is_lost_as_a_round_begins_holds_nobody_up(
    tmp_path: Path, endpoint: str, ours: str, its: str, rank: int
) -> None:
    """Broken: the others wait a minute for what it would have told them of its ranks, and give up with it."""
    with join(tmp_path, endpoint, "a", address=ours, STEPS=100000) as gang:
        gang.wait_for_step(5)
        node = subprocess.run([sys.executable, "-c", DIES, endpoint, its], capture_output=True, text=True, check=False)
        assert node.returncode == -signal.SIGKILL, node.stderr
        assert node.stdout.split() == [str(rank), "2"]
        left = max(step for _, step in starts(gang.notes))
        gang.wait_for(lambda notes: starts(notes)[-1][0] == 1 and starts(notes)[-1][1] > left)
        gang.wait_for_step(starts(gang.notes)[-1][1] + 5)


@pytest.mark.gang
def test_nodes_of_one_machine_need_their_minimum(tmp_path: Path) -> None:
    """Broken: the rest of the gang would wait ten minutes for a node that cannot come back."""
    with started(tmp_path, "--nnodes=2", "--max-restarts=3", STEPS=100000) as gang:
        gang.wait_for_step(5)
        nodes = psutil.Process(gang.process.pid).children()
        assert len(nodes) == 2
        kill(nodes[0].pid)
        failure = gang.result()
    assert isinstance(failure, Failure), gang.log
    assert (failure.type, failure.retryable) == ("NodesLostError", True)


@pytest.mark.gang
def test_a_node_that_has_met_the_others_is_not_apart_from_them(tmp_path: Path, endpoint: str) -> None:
    """Broken: after days of work all pods end since the machine for a new one takes its time, and blame the network."""
    options = ["--nnodes=2", "--max-restarts=0", f"--rdzv-endpoint={endpoint}", "--no-host-store", "--join-seconds=4"]
    options += [f"--local-addr={LOOPBACK}", "--keep-alive-seconds=3"]
    with (
        started(tmp_path, *options, "--node-name=a", name="a.json", STEPS=100000) as gang,
        started(tmp_path, *options, "--node-name=b", name="b.json", STEPS=100000) as other,
    ):
        gang.wait_for_step(5)
        kill(other.process.pid)
        failure = gang.result()
    assert isinstance(failure, Failure), gang.log
    assert failure.type == "NodesLostError", failure


@pytest.mark.gang
def test_a_node_that_meets_nobody_says_how_long_it_waited(tmp_path: Path, endpoint: str) -> None:
    """The first process of its pod tells by it when there is no sense in joining again."""
    options = ["--nnodes=2", "--max-restarts=0", f"--rdzv-endpoint={endpoint}", "--no-host-store"]
    with started(tmp_path, *options, f"--local-addr={LOOPBACK}", "--node-name=a", "--join-seconds=1") as gang:
        failure = gang.result()
    assert isinstance(failure, Failure), gang.log
    assert (failure.type, failure.retryable) == ("NodesApartError", True)
    assert failure.details == {"join_seconds": 1.0, "is_fixed": True}
    assert "2 nodes did not come together within 1 s" in failure.message


@pytest.mark.gang
@pytest.mark.parametrize(
    ("error", "retryable"), [("ValueError('a letter')", True), ("BadDataError('a letter')", False)]
)
def test_an_error_of_one_node_is_that_of_the_gang(tmp_path: Path, error: str, retryable: bool) -> None:
    """Broken: the node whose connection to the failed one breaks would be faster, and tell of that."""
    with started(tmp_path, "--nnodes=2", "--max-restarts=0", do={"1:10!": f"raise {error}"}) as gang:
        failure = gang.result()
    assert isinstance(failure, Failure), gang.log
    assert (failure.type, failure.retryable) == (error.partition("(")[0], retryable)
    assert failure.message.startswith("a letter (rank 1 of 2 on ")


@pytest.mark.parametrize(
    ("failure", "blamed"),
    [
        (Failure("RuntimeError", "[gloo/transport/tcp/pair.cc:538] Connection closed by peer", True, {}), True),
        (Failure("RuntimeError", "Read error [10.0.0.2]:4711: Connection reset by peer", True, {}), True),
        (Failure("DistBackendError", "NCCL error: remote process exited or a network error", True, {}), True),
        (Failure("RankLostError", "rank 0 of 2 on n was killed by SIGABRT", True, {"exit_code": -6}), True),
        (Failure("RankLostError", "was killed by SIGKILL: Connection reset by peer", True, {"exit_code": -9}), False),
        (Failure("RuntimeError", "mat1 and mat2 shapes cannot be multiplied", True, {}), False),
        (Failure("BadDataError", "Connection reset by peer", False, {}), False),
    ],
    ids=["gloo", "reset", "NCCL", "aborted by a watchdog", "killed", "its own", "final"],
)
def test_a_broken_connection_is_told_from_other_errors(failure: Failure, blamed: bool) -> None:
    """Broken: a lost node would cost the others a restart, or an error would wait for a loss that does not come."""
    assert blames_connection(failure) is blamed


def test_the_cause_is_told_from_what_follows(tmp_path: Path) -> None:
    """Broken: the error would be the broken connection of a rank to the one that was killed."""
    (tmp_path / "result-0.json").write_text(
        '{"v": 1, "error": {"type": "RuntimeError", "message": "connection reset", "retryable": true, "details": {}}}'
    )
    ended = [
        Ended(rank=rank, exit_code=code, tail=["last words"], was="") for rank, code in ((0, 1), (1, -signal.SIGKILL))
    ]
    failure = first_failure(tmp_path, ended, world_size=2, node="n", kills="want of memory")
    assert (failure.type, failure.details["rank"]) == ("RankLostError", 1)
    assert "want of memory" in failure.message
    assert "last words" in failure.message
    assert first_failure(tmp_path, ended[:1], world_size=2, node="n", kills="") is None
    told = symptom(tmp_path, ended[:1], world_size=2, node="n")
    assert (told.type, told.details["log"]) == ("RuntimeError", ["last words"])
    assert told.message == "connection reset (rank 0 of 2 on n)"


@pytest.mark.gang
def test_what_happens_to_a_training_is_noted(tmp_path: Path) -> None:
    """Broken: who looks at it in the morning has to read the logs of all its tries."""
    with started(tmp_path, "--nproc-per-node=2", "--max-restarts=1", do={"1:10": KILL}) as gang:
        assert isinstance(gang.result(), DatasetRef), gang.log
        noted = gang.noted
    assert [each.kind for each in noted] == ["started", "failed", "started", "ended"]
    assert [noted[n].said for n in (0, 2, 3)] == ["2 processes", "2 processes", "its result is p"]
    assert "was killed by SIGKILL" in noted[1].said
    assert {each.node for each in noted} == {socket.gethostname()}


@pytest.mark.gang
def test_a_training_goes_on_where_nothing_can_be_noted(tmp_path: Path) -> None:
    """Broken: a store that takes no notes costs the training."""
    place = tmp_path / "store/pipelines/gang/train/key"
    place.mkdir(parents=True)
    (place / "events").write_text("no folder")
    with started(tmp_path, "--nproc-per-node=1") as gang:
        assert isinstance(gang.result(), DatasetRef), gang.log
    assert "could not be noted" in gang.log


@pytest.mark.gang
def test_nodes_that_are_done_wait_for_the_last(tmp_path: Path) -> None:
    """Broken: rank 0, while it publishes the model, would be told that the others are lost, and start anew."""
    late = "import functools; globals().update(write_result=functools.partial(late, write_result))"
    define = "globals().update(late=lambda write, *result: (time.sleep(6), write(*result)))"
    with started(tmp_path, "--nnodes=2", "--max-restarts=3", do={"0:10": f"{define}; {late}"}) as gang:
        assert isinstance(gang.result(), DatasetRef), gang.log
    assert starts(gang.notes) == [(2, 0)], gang.log


@pytest.mark.parametrize(
    ("path", "before", "after", "said"),
    [
        ("memory.events", "oom 0\noom_kill 1\n", "oom 1\noom_kill 2\n", "by the kernel, for want of memory"),
        ("memory/memory.oom_control", "under_oom 0\noom_kill 0\n", "under_oom 0\noom_kill 1\n", "by the kernel, for"),
        ("memory.events", "oom 0\noom_kill 1\n", "oom 0\noom_kill 1\n", "by whom is not known: the kernel counted no"),
        ("memory/memory.oom_control", "under_oom 0\n", "under_oom 0\n", "does not count kills"),
        ("nothing", "", "", "does not count kills"),
    ],
    ids=["cgroup v2", "cgroup v1", "another killer", "an old kernel", "no cgroup"],
)
def test_who_killed_is_said_as_far_as_it_is_known(
    tmp_path: Path, path: str, before: str, after: str, said: str
) -> None:
    """Broken: an eviction would be taken for want of memory, and a micro batch be made smaller for nothing."""
    file = tmp_path / "sys/fs/cgroup" / path
    file.parent.mkdir(parents=True)
    file.write_text(before)
    count = memory_kills(tmp_path)
    file.write_text(after)
    assert said in say_kills(count, memory_kills(tmp_path))
