from __future__ import annotations

import subprocess
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from benchmarks.nights import BARE, RECIPE, Timed, read_times, step_document, timed_python
from benchmarks.pipeline import cost_record, night_records
from mlops.contract.step import LINE, StepInput
from mlops_provider.operators.promote import move
from mlops_provider.spec_file import load_pipeline

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A timed interpreter of a runtime that is a shell script."""
    runtime = tmp_path / ".venv/training/bin"
    runtime.mkdir(parents=True)
    (runtime / "python").write_text('#!/bin/sh\nsleep 0.2; [ "$PPID" = "$MLOPS_PARENT_PID" ] || exit 9; exit "$1"\n')
    (runtime / "python").chmod(0o755)
    return timed_python(tmp_path, "training", tmp_path, tmp_path / "times")


@pytest.mark.parametrize("code", [0, 3])
def test_a_timed_python_behaves_as_the_real_one(python: Path, tmp_path: Path, code: int) -> None:
    """A step would take its wrapper for a dead launcher, or its exit code would be lost."""
    assert subprocess.run([python, str(code)], check=False).returncode == code
    (seconds,) = read_times((tmp_path / "times").read_text())
    assert 0.2 <= seconds < 30


@pytest.mark.parametrize("step", LINE)
def test_a_bare_step_gets_the_pipelines_settings(step: str) -> None:
    """The baseline would do other work than the pipeline, or find the pipeline's own committed."""
    pipeline = load_pipeline(REPOSITORY / RECIPE)
    night = datetime(2013, 2, 8, tzinfo=ZoneInfo("America/New_York"))
    document = StepInput.load(step_document(pipeline, step, night, None).dump())
    assert document.place == f"pipelines/{BARE}/{step}/20130208T050000Z-000000000000"
    assert document.run.interval_start == "2013-02-07T05:00:00+00:00"
    settings = pipeline.model_dump(mode="json", by_alias=True)[step] if step != "promote" else move("promote")
    differing = {name for name, value in document.config.items() if settings[name] != value}
    assert set(document.config) == set(settings)
    assert differing <= {"registered_model"}


def test_records_of_nights() -> None:
    """Airflow's cost would contain the steps' work, or a step would be held against another one."""
    steps = {step: float(number) for number, step in enumerate(LINE, start=1)}
    slower = {step: 2 * seconds for step, seconds in steps.items()}
    nights = [Timed(wall=wall, steps=slower, work=work) for wall, work in ((50.0, 40.0), (46.0, 42.0), (48.0, 43.0))]
    bare = [Timed(wall=24.0, steps=steps, work=24.0)] * 3
    by_name = {record.name: record for record in night_records(nights, bare)}
    assert list(by_name) == [*(f"pipeline.{step}" for step in LINE), "pipeline.whole_night"]
    assert {record.ratio for record in by_name.values()} == {2.0}
    assert by_name["pipeline.train"].ours == slower["train"]
    idle = [Timed(wall=wall, steps={}, work=0.0) for wall in (4.0, 5.0, 8.0)]
    cost = cost_record(nights, idle)
    assert (cost.ours, cost.baseline_value) == (5.0, 5.0)
