from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from gangs import started
from torch.distributed import HashStore
from turns import by_turns

from mlops.contract.refs import DatasetRef
from mlops.contract.step import Failure, python_path
from mlops.elastic.diagnosis import Watch
from mlops.elastic.peers import Peers
from mlops.elastic.stacks import doing, main_thread, write_stacks
from mlops.elastic.suspects import RankState, judge
from mlops.trainer.health import Heartbeat, read_pulse, stacks_path

HANGS = {
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "asleep": "time.sleep(1000)",
    "spinning in C": "re.match('(a+)+$', 'a' * 60 + 'b')",
    "in a collective of its own": "distributed.broadcast(torch.zeros(1), src=0); time.sleep(1000)",
}


@pytest.mark.parametrize("hang", by_turns([*HANGS]))
@pytest.mark.gang
def test_a_hung_rank_is_found_and_named(tmp_path: Path, hang: str) -> None:
    """Broken: GPUs would stand idle until someone looks, and who looks would have a thousand ranks to search."""
    with started(tmp_path, "--nproc-per-node=2", "--hang-seconds=2", do={"1:10": HANGS[hang]}) as ranks:
        failure = ranks.result()
    assert isinstance(failure, Failure), ranks.log
    assert (failure.type, failure.retryable, failure.details["rank"]) == ("HungRankError", True, 1), failure.message
    assert "rank 1 on " in failure.message
    first, second = failure.details["ranks"]
    assert (second["step"], second["phase"]) == (10, "forward")
    assert (first["step"], first["phase"]) == (10, "backward")
    assert "all_reduce" in first["doing"]
    assert failure.details["certain"] is (hang != "in a collective of its own")
    assert ("stopped" in second["state"]) is (hang == "stopped")
    (stacks,) = (tmp_path / "store").rglob("stacks-1.txt")
    assert "in disturb" in stacks.read_text()


@pytest.mark.gang
def test_a_hung_gang_is_restarted(tmp_path: Path) -> None:
    """Broken: a hiccup of the network would cost a try of the task."""
    options = ["--nproc-per-node=2", "--hang-seconds=2", "--max-restarts=1"]
    with started(tmp_path, *options, do={"1:10": HANGS["stopped"]}) as ranks:
        assert isinstance(ranks.result(), DatasetRef), ranks.log


@pytest.mark.gang
@pytest.mark.parametrize(
    ("do", "heartbeat"),
    [({"0:10": "heart.beat(step, REST); time.sleep(4)"}, 1), ({"0:10": "time.sleep(4)"}, 0)],
    ids=["at rest", "a script without heartbeats"],
)
def test_silence_alone_is_no_hang(tmp_path: Path, do: dict[str, str], heartbeat: int) -> None:
    """Broken: an upload after the last step, or a script that knows nothing of heartbeats, would be killed."""
    with started(tmp_path, "--nproc-per-node=1", "--hang-seconds=1", do=do, HEARTBEAT=heartbeat) as ranks:
        assert isinstance(ranks.result(), DatasetRef), ranks.log


def test_a_gang_hangs_only_where_all_its_nodes_are_silent() -> None:
    """Broken: nodes that wait for another's validation would end it."""
    store = HashStore()
    first, second = (Peers(store, node=node, num_nodes=2) for node in range(2))
    assert not first.all_silent(True)
    assert not second.all_silent(False)
    assert not first.all_silent(False)
    assert not second.all_silent(True), "the first went on"
    assert first.all_silent(True)
    assert second.all_silent(False), "the examination may have woken the rank; the others must still tell theirs"


def state(rank: int, **changes: Any) -> RankState:
    fields: dict[str, Any] = {
        "step": 7,
        "beats": 2,
        "phase": "backward",
        "seconds": 30.0,
        "state": "sleeping",
        "doing": "",
        "waits_for": "other ranks",
    }
    return RankState(rank=rank, node="n", **(fields | changes))


@pytest.mark.parametrize(
    ("late", "certain"),
    [
        (state(1, waits_for="", phase="forward"), True),
        (state(1, waits_for="the store", phase="at rest"), True),
        (state(1, waits_for="the backward pass", busy=0.9), True),
        (state(1, step=8, state="stopped by a signal"), True),
        (state(1, step=8, state="stuck in the kernel (state D)"), True),
        (state(1, seen=False, waits_for="", phase="forward"), False),
        (state(1, step=6), False),
        (state(1, beats=3), False),
        (state(1, busy=0.9), False),
    ],
    ids=[
        "computes", "waits for the store", "computes backward", "stopped", "stuck in the kernel", "unseen",
        "lower step", "in another place", "holds the GIL",
    ],
)  # fmt: skip
def test_the_late_rank_is_the_one_the_others_wait_for(late: RankState, certain: bool) -> None:
    """Broken: an innocent rank would be named, or a guess be taken for a fact."""
    verdict = judge([state(0), late, state(2)])
    assert (verdict.suspect, verdict.certain) == (late, certain)


def test_who_waits_is_never_named_while_another_does_not() -> None:
    """Broken: as above. Of two that compute either may be the cause; of ranks that all wait for each other none is."""
    first, second = state(0, waits_for="", step=6), state(1, waits_for="", step=7)
    verdict = judge([state(2, step=5), second, first])
    assert (verdict.suspect, verdict.certain) == (first, False)
    assert judge([state(0), state(1), state(2)]).suspect is None


TORCH = "/v/site-packages/torch"
WAITS = {
    "a collective": ("other ranks", [f"{TORCH}/distributed/distributed_c10d.py all_reduce", "/r/loss.py loss"]),
    "a wrapped one": (
        "other ranks",
        [f"{TORCH}/_ops.py __call__", f"{TORCH}/distributed/_functional_collectives.py wait_tensor", "/r/m.py forward"],
    ),
    "backward": ("the backward pass", [f"{TORCH}/autograd/graph.py _engine_run_backward", "/r/include/losses.py f"]),
    "a hook of the user": ("", ["/r/include/model.py hook", f"{TORCH}/autograd/graph.py _engine_run_backward"]),
    "a layer within DDP": (
        "", [f"{TORCH}/nn/modules/linear.py forward", f"{TORCH}/nn/parallel/distributed.py forward", "/r/loss.py loss"],
    ),
    "a sliced layer": ("", [f"{TORCH}/distributed/tensor/_dispatch.py dispatch", "/r/loss.py loss"]),
    "a lock": ("", ["/usr/threading.py wait", "/r/include/model.py forward"]),
    "the store": ("the store", ["/r/training/mlops/store.py put", "/r/training/mlops/trainer/loop.py _save"]),
    "the loader": ("data", ["/usr/threading.py wait", "/r/training/mlops/data/shards/loader.py _ahead"]),
}  # fmt: skip


@pytest.mark.parametrize("where", WAITS)
def test_a_stack_says_what_a_rank_waits_for(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a rank that waits would count as the cause, or the cause as one that waits."""
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    waits_for, frames = WAITS[where]
    stack = "".join(f'  File "{file}", line 1 in {name}\n' for file, name in map(str.split, frames))
    found = doing(
        'Thread 0x1 (most recent call first):\n  File "/usr/x.py", line 1 in run\n\nCurrent thread 0x2:\n' + stack
    )
    assert (found.waits_for, found.known) == (waits_for, True)


def test_a_heartbeat_outlives_its_process(tmp_path: Path) -> None:
    """Broken: nobody would know how far a killed rank was."""
    program = (
        "import os, signal; from pathlib import Path; from mlops.trainer.health import Heartbeat\n"
        f"heart = Heartbeat(Path({str(tmp_path)!r}), 3)\n"
        "heart.beat(4, 'forward'); heart.beat(5, 'a phase of more than twenty-four letters')\n"
        "os.kill(os.getpid(), signal.SIGUSR1); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": python_path(Path())}, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    pulse = read_pulse(tmp_path, 3)
    assert pulse is not None
    assert (pulse.step, pulse.beats, pulse.phase, pulse.under_way) == (5, 1, "a phase of more than twe", True)
    assert "Current thread" in stacks_path(tmp_path, 3).read_text()
    assert read_pulse(tmp_path, 4) is None


def test_stacks_are_read_when_they_are_whole(tmp_path: Path) -> None:
    """Broken: on a busy machine another thread would be taken for the main one, whose stack is written last."""
    program = (
        "import faulthandler, signal, sys, threading, time; from pathlib import Path\n"
        "thread = threading.Thread(target=time.sleep, args=(30,), daemon=True); thread.start()\n"
        "def write(*_):\n"
        "    faulthandler.dump_traceback(whole); whole.flush(); lines = Path(whole.name).read_text().splitlines(True)\n"
        "    for line in lines: print(line, end='', file=stacks, flush=True); time.sleep(0.15)\n"
        "whole, stacks = open(sys.argv[1] + '.whole', 'w'), open(sys.argv[1], 'w')\n"
        "signal.signal(signal.SIGUSR1, write); print(flush=True); time.sleep(30)"
    )
    command = [sys.executable, "-c", program, stacks_path(tmp_path, 0)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert "in <module>" in main_thread(write_stacks(tmp_path, 0, process.pid))
        process.kill()


@contextmanager
def ranks(folder: Path, *does: str) -> Iterator[dict[int, int]]:
    """Processes with heartbeats, which do as they are told; their pids."""
    program = (
        "import os, re, signal, sys, time; from pathlib import Path; from mlops.trainer.health import Heartbeat\n"
        "Heartbeat(Path(sys.argv[1]), int(sys.argv[2])); print(flush=True)\n"
    )
    command = [sys.executable, "-c"]
    environment = {**os.environ, "PYTHONPATH": python_path(Path())}
    processes = [
        subprocess.Popen([*command, program + do, folder, str(rank)], env=environment, stdout=subprocess.PIPE)
        for rank, do in enumerate(does)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield {rank: process.pid for rank, process in enumerate(processes)}
    finally:
        for process in processes:
            process.kill()
            process.communicate()


SLEEP = "time.sleep(60)"


def test_a_stopped_rank_is_woken_when_all_others_were_seen(tmp_path: Path) -> None:
    """Broken: those that wait for it would go on before they write their stacks, and the cause be a guess."""
    seen: list[tuple[list[bool], str]] = []
    with ranks(tmp_path, SLEEP, f"os.kill(os.getpid(), signal.SIGSTOP); {SLEEP}", SLEEP) as pids:
        while psutil.Process(pids[1]).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)

        def all_seen() -> None:
            written = [bool(stacks_path(tmp_path, rank).stat().st_size) for rank in range(3)]
            seen.append((written, psutil.Process(pids[1]).status()))

        states = Watch(tmp_path, pids, hang_seconds=1, node="n").examine([0, 1, 2], all_seen=all_seen)
    assert seen == [([True, False, True], psutil.STATUS_STOPPED)]
    assert [(state.rank, state.halted, state.seen) for state in states] == [
        (0, False, True), (1, True, True), (2, False, True),
    ]  # fmt: skip


@pytest.mark.usefixtures("crowded")
def test_what_a_rank_does_is_seen_though_others_use_the_processors(tmp_path: Path) -> None:
    """Broken: whoever holds Python's lock is not named beside other gangs, or whoever wakes up now and then is."""
    wakes_up = "exec('while True: time.sleep(0.002)')"
    with ranks(tmp_path, SLEEP, wakes_up, "re.match('(a+)+$', 'a' * 60 + 'b')") as pids:
        asleep, awake, computes = Watch(tmp_path, pids, hang_seconds=1, node="n").examine([0, 1, 2])
    assert max(asleep.busy, awake.busy) < 0.3 < computes.busy


def test_nodes_wait_for_each_other_before_they_wake_a_rank() -> None:
    """Broken: as before, where the stopped rank is on another node."""
    store = HashStore()
    first, second = (Peers(store, node=node, num_nodes=2) for node in range(2))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.await_seen)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.5)
        second.await_seen()
        waiting.result(timeout=30)


def test_a_rank_that_ends_before_it_is_asked_is_passed_over(tmp_path: Path) -> None:
    """Broken: the agent would die of the hang that it finds, and all its ranks with it, without a word."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    stacks_path(tmp_path, 0).touch()
    assert write_stacks(tmp_path, 0, ended.pid) == ""


def test_a_py_spy_that_hangs_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: as before. It hangs where the rank's memory cannot be read."""
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nexec sleep 100\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("mlops.elastic.stacks.PY_SPY_SECONDS", 0.2)
    assert write_stacks(tmp_path, 0, os.getpid()) == ""


def test_without_an_agent_a_heartbeat_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a step started by hand would fail, or leave files behind."""
    monkeypatch.delenv("MLOPS_HEARTBEAT_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    Heartbeat.from_environment().beat(1, "forward")
    assert not list(tmp_path.iterdir())
