from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.__main__ import GROUPS
from benchmarks.record import compare
from benchmarks.rounds import in_rotation, paired, records
from benchmarks.training.group import environment
from benchmarks.training.programs.servers import healthy, running, slow_server
from benchmarks.training.restart import CALLS_VARIABLE, RECIPE, Call, kill, nth_calls, read_calls, settings

REPOSITORY = Path(__file__).parents[2]
WORKER = """
import os, sys, time
rank = 0 if os.fork() else 1
while True:
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()} {rank} {time.time()}\\n")
    if rank == 0 and os.waitpid(-1, os.WNOHANG)[0]:
        break
    time.sleep(0.002)
"""
"""A gang of two that ends when its second rank is killed."""


def test_every_contender_goes_first_in_some_round() -> None:
    """The one after a slow start or a full disk would always be the same; the unmeasured round would count."""
    order: list[str] = []

    def noted(name: str) -> float:
        order.append(name)
        return float(len(order))

    results = in_rotation({name: lambda name=name: noted(name) for name in "abc"}, rounds=3)  # type: ignore[misc]
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert results["a"] == [6.0, 8.0, 10.0]


def test_neighbours_in_time_are_compared() -> None:
    """A machine that slowed down half-way would make one contender look better."""
    ours, theirs = [10.0, 5.0, 1.0], [20.0, 10.0, 2.0]
    median, baseline = paired(ours, theirs)
    assert (median, median / baseline) == (5.0, 0.5)


def test_records_can_be_stored() -> None:
    """`make bench` would fail at the end of an hour, after all was measured."""
    results = {"ours": [2.0, 2.0], "bare": [4.0, 4.0]}
    made = records("training.loop", results, unit="steps/s", baselines={"bare": ("a bare loop", 0.99)})
    [record] = [compare(**arguments) for arguments in json.loads(json.dumps(made))]
    assert (record.name, record.ratio, record.reached) == ("training.loop_vs_bare", 0.5, False)
    assert record.group in GROUPS


def test_the_runtimes_own_versions_come_before_the_peers() -> None:
    """Ours would be measured with other libraries than it runs with."""
    path = environment(REPOSITORY)["PYTHONPATH"].split(os.pathsep)
    assert path.index(str(REPOSITORY / ".venv/peers")) > path.index(
        str(REPOSITORY / ".venv/training/lib/python3.11/site-packages")
    )


@pytest.fixture
def upstream() -> Iterator[int]:
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_the_slow_server_is_the_real_one_behind(upstream: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracking would be measured against a server that refuses, which is quick."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    with slow_server(upstream, tmp_path) as port:
        assert healthy(port)
    assert not healthy(port)


def test_a_server_ends_with_the_block_that_failed(tmp_path: Path) -> None:
    """A failed benchmark would leave servers running."""
    with pytest.raises(RuntimeError, match="measured"), running(["sleep", "60"], tmp_path / "log") as process:
        raise RuntimeError("could not be measured")
    assert process.poll() is not None


def test_a_call_counts_once_it_is_written_whole() -> None:
    """Half a line would be taken for another process, or for another time."""
    assert [call.pid for call in read_calls("7 0 1.5\n8 1 2.5\n9 0")] == [7, 8]


def test_the_next_step_is_one_that_all_ranks_of_the_new_gang_have_done() -> None:
    """A step of the killed gang, or of the first rank that is back, would end the measurement."""
    calls = read_calls("1 0 1.0\n2 1 1.0\n1 0 2.0\n2 1 2.0\n3 0 3.0\n4 1 3.0\n3 0 4.0\n")
    assert nth_calls(calls, {1, 2}, 2) == []
    assert [call.pid for call in nth_calls(calls, {1, 2}, 1)] == [3, 4]
    assert nth_calls(calls, {1, 2, 3}, 1) == []


def test_a_kill_is_followed_to_the_next_gangs_step(tmp_path: Path) -> None:
    """The time until the survivors' last step would be recorded."""
    calls = tmp_path / "calls"
    calls.touch()
    gangs: list[subprocess.Popen[bytes]] = []

    def read() -> Sequence[Call]:
        if not gangs or (len(gangs) == 1 and gangs[0].poll() is not None):
            gangs.append(subprocess.Popen([sys.executable, "-c", WORKER, calls], start_new_session=True))
        return read_calls(calls.read_text())

    try:
        before = time.time()
        seconds = kill(read)
        assert len(gangs) == 2
        assert 0 < seconds < time.time() - before
    finally:
        for gang in gangs:
            if gang.poll() is None:
                os.killpg(gang.pid, signal.SIGKILL)
            gang.wait(60)


def test_the_recipe_of_the_killed_training_fits_its_settings() -> None:
    """The train step would refuse what it is to be killed in."""
    config = settings()
    functions = {config[name].partition(":")[2] for name in ("model", "loss")}
    assert all(f"def {name}(" in RECIPE for name in functions)
    assert CALLS_VARIABLE in RECIPE
