from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gangs import started
from torch.distributed import HashStore

from mlops_provider.refs import DatasetRef
from mlops_provider.step import Failure
from training.elastic.diagnosis import RankState, late_rank, write_stacks
from training.elastic.peers import Peers
from training.trainer.health import Heartbeat, read_pulse, stacks_path

HANGS = {
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "asleep": "time.sleep(1000)",
    "spinning in C": "re.match('(a+)+$', 'a' * 60 + 'b')",
    "in a collective of its own": "distributed.broadcast(torch.zeros(1), src=0); time.sleep(1000)",
}


@pytest.mark.gang
@pytest.mark.parametrize("hang", HANGS)
def test_a_hung_rank_is_found_and_named(tmp_path: Path, hang: str) -> None:
    """Broken: GPUs would stand idle until someone looks, and who looks would have a thousand ranks to search."""
    with started(tmp_path, "--nproc-per-node=2", "--hang-seconds=2", do={"1:10": HANGS[hang]}) as gang:
        failure = gang.result()
    assert isinstance(failure, Failure), gang.log
    assert (failure.type, failure.retryable, failure.details["rank"]) == ("HungRankError", True, 1), failure.message
    assert "rank 1 on " in failure.message
    first, second = failure.details["ranks"]
    assert (second["step"], second["phase"]) == (10, "forward")
    assert (first["step"], first["phase"]) == (10, "backward")
    assert "all_reduce" in first["doing"]
    assert ("stopped" in second["state"]) is (hang == "stopped")
    (stacks,) = (tmp_path / "store").rglob("stacks-1.txt")
    assert "in disturb" in stacks.read_text()


@pytest.mark.gang
def test_a_hung_gang_is_restarted(tmp_path: Path) -> None:
    """Broken: a hiccup of the network would cost a try of the task."""
    options = ["--nproc-per-node=2", "--hang-seconds=2", "--max-restarts=1"]
    with started(tmp_path, *options, do={"1:10": HANGS["stopped"]}) as gang:
        assert isinstance(gang.result(), DatasetRef), gang.log


@pytest.mark.gang
@pytest.mark.parametrize(
    ("do", "heartbeat"),
    [({"0:10": "heart.beat(step, REST); time.sleep(4)"}, 1), ({"0:10": "time.sleep(4)"}, 0)],
    ids=["at rest", "a script without heartbeats"],
)
def test_silence_alone_is_no_hang(tmp_path: Path, do: dict[str, str], heartbeat: int) -> None:
    """Broken: an upload after the last step, or a script that knows nothing of heartbeats, would be killed."""
    with started(tmp_path, "--nproc-per-node=1", "--hang-seconds=1", do=do, HEARTBEAT=heartbeat) as gang:
        assert isinstance(gang.result(), DatasetRef), gang.log


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
    }
    return RankState(rank=rank, node="n", **(fields | changes))


@pytest.mark.parametrize(
    "late",
    [
        state(1, step=6, seconds=29.0),
        state(1, beats=1, seconds=29.0),
        state(1, seconds=31.0),
        state(1, step=8, seconds=29.0, state="stopped by a signal"),
        state(1, step=8, seconds=29.0, state="stuck in the kernel (state D)"),
    ],
    ids=["lower step", "earlier phase", "older heartbeat", "stopped", "stuck in the kernel"],
)
def test_the_late_rank_is_the_one_the_others_wait_for(late: RankState) -> None:
    assert late_rank([state(0), late, state(2)]) is late


def test_a_heartbeat_outlives_its_process(tmp_path: Path) -> None:
    """Broken: nobody would know how far a killed rank was."""
    program = (
        "import os, signal; from pathlib import Path; from training.trainer.health import Heartbeat\n"
        f"heart = Heartbeat(Path({str(tmp_path)!r}), 3)\n"
        "heart.beat(4, 'forward'); heart.beat(5, 'a phase of more than twenty-four letters')\n"
        "os.kill(os.getpid(), signal.SIGUSR1); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": ".:plugins"}, check=False)
    assert ended.returncode == -signal.SIGKILL
    pulse = read_pulse(tmp_path, 3)
    assert pulse is not None
    assert (pulse.step, pulse.beats, pulse.phase, pulse.under_way) == (5, 1, "a phase of more than twe", True)
    assert "Current thread" in stacks_path(tmp_path, 3).read_text()
    assert read_pulse(tmp_path, 4) is None


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
    monkeypatch.setattr("training.elastic.diagnosis.PY_SPY_SECONDS", 0.2)
    assert write_stacks(tmp_path, 0, os.getpid()) == ""


def test_without_an_agent_a_heartbeat_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a step started by hand would fail, or leave files behind."""
    monkeypatch.delenv("MLOPS_HEARTBEAT_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    Heartbeat.from_environment().beat(1, "forward")
    assert not list(tmp_path.iterdir())
