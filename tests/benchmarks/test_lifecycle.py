from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.__main__ import GROUPS
from benchmarks.record import compare
from mlops.contract.step import python_path

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / ".venv/training/bin/python"
SMALL = """
import json, sys
from datetime import date
from pathlib import Path
from benchmarks.lifecycle.programs import gate
gate.NIGHTS = [date(2013, 3, 3), date(2013, 6, 2)]
gate.NUM_NOISE, gate.NUM_SEEDS, gate.NUM_PLANTED, gate.NUM_DRAWS, gate.STRENGTHS = 3, 3, 2, 60, (3.0,)
print(json.dumps(gate.main(Path(sys.argv[1]))))
"""
"""Two nights of nine trainings, and a plant that cannot be missed."""


@pytest.mark.gang
def test_the_gate_is_measured_by_real_trainings() -> None:
    """`make bench ONLY=lifecycle` would fail at its end, or call a gate good that lets nothing through."""
    path = python_path(REPOSITORY)
    finished = subprocess.run(
        [PYTHON, "-c", SMALL, REPOSITORY], env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = [compare(**arguments) for arguments in json.loads(finished.stdout.splitlines()[-1])]
    by_name = {record.name.partition(".")[2].partition("_at_")[0]: record for record in found}
    assert {record.group for record in found} == {"lifecycle"} <= set(GROUPS)
    assert by_name["power"].ours == 100
    assert by_name["false_promotions"].ours < by_name["power"].ours
