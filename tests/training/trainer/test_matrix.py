"""Odd models, optimizers and layouts, killed twice and resumed; see ``matrix_cases.py`` and ``matrix_program.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from turns import SEED, WHOLE, by_turns

from mlops.contract.step import python_path

sys.path.insert(0, str(Path(__file__).parent))  # the program's own modules
from matrix_cases import CASES, EQUAL, Case

PROGRAM = Path(__file__).with_name("matrix_program.py")
CHECKOUT = Path(__file__).parents[3]


def as_expected(case: Case, outcome: str) -> bool:
    if case.expected == EQUAL:
        return outcome == EQUAL
    return outcome.startswith("refused: BadConfigError") and case.expected in outcome


@pytest.mark.gang
@pytest.mark.timeout(2400 if WHOLE else 600)
def test_every_case_is_equal_to_the_bit_or_refused(tmp_path: Path, config: Any) -> None:
    """Broken: a kind of model or optimizer would end with other weights when it is preempted, and nobody would know."""
    chosen = CASES if WHOLE else by_turns([case for case in CASES if not case.slow])
    order = {"names": [case.name for case in chosen], "section": config()}
    (tmp_path / "order.json").write_text(json.dumps(order))
    command = [sys.executable, str(PROGRAM), str(SEED), str(tmp_path / "order.json"), str(tmp_path / "results.json")]
    environment = os.environ | {"PYTHONPATH": python_path(CHECKOUT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "results.json").read_text())
    print(f"TURN={SEED}: {len(chosen)} cases, {found['cpu_seconds']:.0f} CPU s")
    wrong = {
        case.name: {"expected": case.expected, "found": found["outcomes"][case.name]}
        for case in chosen
        if not as_expected(case, found["outcomes"][case.name])
    }
    assert not wrong, f"with TURN={SEED}: {json.dumps(wrong, indent=1)}"


def test_names_are_one_to_a_case() -> None:
    """Broken: a case would hide another one."""
    assert len({case.name for case in CASES}) == len(CASES)
