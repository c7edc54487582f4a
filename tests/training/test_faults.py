"""Faults with a known cause, met with by real process groups of three ranks: which rank is named, and why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mlops.elastic.pace import slow_ranks

SERVER = Path(__file__).parents[1] / "fault_server.py"
TIMEOUT_SECONDS = 400
HANG, NO_HANG = 2.0, 60.0
"""Without progress; the second where the fault is no hang, so that a busy machine makes none of it."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the user must be told."""

    rank: int
    """The one that meets with the fault."""
    type: str = "HungRankError"
    words: tuple[str, ...] = ()
    """Of the message."""
    certain: bool | None = True
    """False where several causes would look the same; None where either is right."""
    hang_seconds: float = NO_HANG


EXPECTED: Mapping[str, Expected] = {
    "sleep": Expected(rank=1, words=("Late is rank 1", "forward", "fault_program.py"), hang_seconds=HANG),
    "lock": Expected(rank=2, words=("Late is rank 2", "in lock"), hang_seconds=HANG),
    "endless loop": Expected(rank=1, words=("Late is rank 1", "in spin"), hang_seconds=HANG),
    "GIL": Expected(rank=1, words=("Late is rank 1", "hold_the_gil"), hang_seconds=HANG),
    "GIL at any time": Expected(rank=2, words=("is rank 2",), certain=None, hang_seconds=HANG),
    "GIL in a collective": Expected(rank=1, words=("is rank 1",), certain=None, hang_seconds=HANG),
    "stopped": Expected(rank=0, words=("Late is rank 0", "stopped by a signal"), hang_seconds=HANG),
    "sleep in backward": Expected(rank=1, words=("Late is rank 1", "in backward (fault_program.py"), hang_seconds=HANG),
    "own collective": Expected(rank=1, words=("not certain", "in barrier"), certain=False, hang_seconds=HANG),
    "data": Expected(rank=1, words=("Late is rank 1", "waits for data"), hang_seconds=HANG),
    "validation": Expected(rank=0, words=("Late is rank 0", "validation", "fault_program.py"), hang_seconds=HANG),
    "start": Expected(rank=1, words=("Late is rank 1", "start", "fault_program.py"), hang_seconds=HANG / 2),
    "store of rank 0": Expected(rank=0, words=("Late is rank 0", "waits for the store"), hang_seconds=HANG / 2),
    "store of rank 2": Expected(rank=2, words=("Late is rank 2", "waits for the store"), hang_seconds=HANG / 2),
    "skipped collective": Expected(
        rank=1, type="MismatchError", words=("collective mismatch in your code", "rank 1 at step 3"), certain=False
    ),
    "other shape": Expected(
        rank=1, type="MismatchError", words=("collective mismatch in your code", "at step 3, forward"), certain=False
    ),
    "exit 0": Expected(rank=2, type="RankLostError", words=("rank 2", "code 0", "in the middle of the training")),
    "sys.exit(0)": Expected(rank=1, type="ExitedError", words=("sys.exit(0)", "fault_program.py", "rank 1")),
    "exit 3": Expected(rank=1, type="RankLostError", words=("rank 1", "code 3", "at step 3, forward")),
    "sys.exit(3)": Expected(rank=2, type="ExitedError", words=("sys.exit(3)", "fault_program.py", "rank 2")),
    "abort": Expected(rank=1, type="RankLostError", words=("rank 1", "SIGABRT", "at step 3, forward")),
    "segmentation fault": Expected(rank=2, type="RankLostError", words=("rank 2", "SIGSEGV")),
    "killed": Expected(rank=1, type="RankLostError", words=("rank 1", "SIGKILL", "by whom is not known")),
    "error": Expected(rank=2, type="ValueError", words=("the labels are letters", "rank 2 of 3")),
    "final error": Expected(rank=1, type="BadDataError", words=("the labels are letters", "rank 1 of 3")),
    "full disk": Expected(rank=1, type="CheckpointError", words=("rank 1: cannot write", "rank-0001", "too large")),
    "no space": Expected(rank=2, type="OSError", words=("No space left on device", "/scratch/cache.bin", "rank 2")),
    "not a number": Expected(rank=1, type="NonFiniteLossError", words=("on training samples {sample}:",)),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, config: Any) -> Mapping[str, Mapping[str, Any]]:
    """By fault; a gang in which nothing happens is among them."""
    folder = tmp_path_factory.mktemp("faults")
    cases = [[name, fault.rank, fault.hang_seconds] for name, fault in EXPECTED.items()]
    # The longest first.
    cases.sort(key=lambda case: (case[2] > HANG, case[2]))
    cases += [["none", 1, NO_HANG], ["slow", 2, NO_HANG]]
    section = config(objective="binary", metric="auc", epochs=1)
    command = [sys.executable, SERVER, folder, json.dumps(cases), json.dumps(section)]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=TIMEOUT_SECONDS)
    found = {outcome["case"]: outcome for outcome in json.loads((folder / "outcomes.json").read_text())}
    assert found["none"]["failure"] is None, found["none"]
    return found


@pytest.mark.gang
@pytest.mark.parametrize("name", EXPECTED)
def test_a_fault_names_its_rank_and_cause(name: str, outcomes: Mapping[str, Mapping[str, Any]]) -> None:
    """Broken: whoever is on call would look at the wrong machine, or at the wrong code."""
    expected, outcome = EXPECTED[name], outcomes[name]
    failure = outcome["failure"]
    assert failure is not None
    assert (failure["type"], failure["details"]["rank"]) == (expected.type, expected.rank), failure["message"]
    for words in expected.words:
        assert words.format(**outcome) in failure["message"]
    if expected.certain is not None:
        assert failure["details"].get("certain") is expected.certain, failure["message"]
    # Before it hangs, a rank may be slow.
    noted = [kind for kind in outcome["noted"] if kind != "slow"]
    assert noted == ["failed" if expected.hang_seconds == NO_HANG else "hung", "started"]


@pytest.mark.gang
def test_a_slow_rank_is_said(outcomes: Mapping[str, Mapping[str, Any]]) -> None:
    """Broken: a throttled machine would slow down all others for days, and nobody would know."""
    assert (outcomes["slow"]["failure"], outcomes["slow"]["slow"]) == (None, [2])
    assert outcomes["slow"]["noted"] == ["slow", "started"], "also where people look, and not in the log alone"


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ({0: 0.1, 1: 0.1, 2: 0.3}, {2: 3.0}),
        ({0: 0.1, 1: 0.3}, {1: 3.0}),
        ({0: 0.1, 1: 0.12, 2: 0.19}, {}),
        ({0: 1e-5, 1: 9e-5}, {}),
        ({0: 0.1}, {}),
        ({}, {}),
    ],
    ids=["one of three", "one of two", "a little", "noise", "alone", "none"],
)
def test_slow_is_twice_the_others(seconds: Mapping[int, float], slow: Mapping[int, float]) -> None:
    assert slow_ranks(seconds) == pytest.approx(slow)
