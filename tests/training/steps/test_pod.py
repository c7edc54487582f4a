"""The first process of a step's container."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from project import REPOSITORY

from mlops.contract.step import INTERRUPTED, LOST

SECONDS = 60.0

SLOW = """
import sys, time
from pathlib import Path

here = Path(__file__).parent
(here / "begun").touch()
while not (here / "told").exists():
    time.sleep(0.01)
sys.path.remove(str(here))
del sys.modules["obstore"]
import obstore
"""
"""Stands for a library whose import takes its time."""


def environment(folder: Path, python_path: str) -> dict[str, str]:
    """With a folder for what lies in a container's own ``/tmp``, and goes with it."""
    return {**os.environ, "PYTHONPATH": python_path, "TMPDIR": str(folder)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_told_to_end_while_it_starts_ends(tmp_path: Path, number: signal.Signals) -> None:
    """Broken: a cancelled run's pod would work on until its grace period is over, for Kubernetes says it once."""
    (tmp_path / "obstore.py").write_text(SLOW)
    command = [sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')"]
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY / "training")])
    process = subprocess.Popen(
        [sys.executable, "-m", "mlops.container", *command], env=environment(tmp_path, path), cwd=tmp_path
    )
    try:
        deadline = time.monotonic() + SECONDS
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        (tmp_path / "told").touch()
        assert process.wait(SECONDS) == INTERRUPTED
    finally:
        process.kill()
    assert not (tmp_path / "ran").exists(), "nothing was begun"


def test_a_command_has_its_own_exit_code(tmp_path: Path) -> None:
    own = environment(tmp_path, str(REPOSITORY / "training"))
    for code in (0, 137):
        command = [sys.executable, "-m", "mlops.container", sys.executable, "-c", f"raise SystemExit({code})"]
        assert subprocess.run(command, env=own, cwd=tmp_path, check=False, timeout=SECONDS).returncode == code


@pytest.mark.parametrize("code", ["raise SystemExit(143)", "import os; os.kill(os.getpid(), 15)"])
def test_who_ends_by_sigterm_that_nobody_sent_to_the_pod_is_lost(tmp_path: Path, code: str) -> None:
    """Broken: the Job's policy ignores 143 and replaces the pod for ever, and no try of the task ends."""
    command = [sys.executable, "-m", "mlops.container", sys.executable, "-c", code]
    own = environment(tmp_path, str(REPOSITORY / "training"))
    assert subprocess.run(command, env=own, cwd=tmp_path, check=False, timeout=SECONDS).returncode == LOST


MEETING = """
import json, os, sys
from pathlib import Path
from mlops.contract.step import Failure, write_result

rounds = Path(sys.argv[1])
rounds.write_text(rounds.read_text() + "x" if rounds.exists() else "x")
kind = "NodesLostError" if len(rounds.read_text()) == LOST_IN else "NodesApartError"
details = {"join_seconds": 3.0, "is_fixed": True} if kind == "NodesApartError" else {}
write_result(Path(os.environ["MLOPS_RESULT_PATH"]), Failure(kind, "2 nodes did not come together", True, details))
raise SystemExit(1)
"""
"""A node that meets nobody; in one round it has met the others and lost them again."""


@pytest.mark.parametrize("lost_in", [0, 2])
def test_nodes_that_do_not_reach_each_other_are_given_up(tmp_path: Path, lost_in: int) -> None:
    """Broken: with a network policy that forgets them a gang's pods hold their GPUs for a week, and do nothing."""
    (tmp_path / "meeting.py").write_text(MEETING.replace("LOST_IN", str(lost_in)))
    last_words = tmp_path / "termination-log"
    program = (
        "import sys; from pathlib import Path; from mlops.steps import pod; "
        f"pod._TERMINATION_MESSAGE = Path({str(last_words)!r}); "
        f"sys.exit(pod.main([sys.executable, {str(tmp_path / 'meeting.py')!r}, {str(tmp_path / 'rounds')!r}], bool))"
    )
    own = environment(tmp_path, str(REPOSITORY / "training"))
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=own,
        cwd=tmp_path,
        check=False,
        timeout=SECONDS,
        capture_output=True,
        text=True,
    )
    assert done.returncode == LOST, done.stdout + done.stderr
    assert time.monotonic() - begin > 6.0, "twice as long as pods may take to run"
    assert len((tmp_path / "rounds").read_text()) > 1 + lost_in
    said = json.loads(last_words.read_text())
    assert "do not reach each other: does a NetworkPolicy let them" in said["message"]
    assert said["retryable"] is True
