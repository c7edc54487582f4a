"""Group ``pipeline``: what a night takes, what Airflow adds to it, and what reading the DAGs takes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from zoneinfo import ZoneInfo

from benchmarks.nights import WEAK, BareProcesses, MeasuredAirflow, Timed
from benchmarks.parsing import measure_parsing
from benchmarks.record import Record, compare
from benchmarks.starts import measure_starts
from mlops.contract.step import LINE

ZONE = ZoneInfo("America/New_York")
FIRST_NIGHT = datetime(2013, 2, 8, tzinfo=ZONE)
"""Not measured. It makes the champion that the others are judged against, and has every process load what it needs."""
NIGHTS = (
    datetime(2013, 3, 15, tzinfo=ZONE),
    datetime(2013, 4, 18, tzinfo=ZONE),
    datetime(2013, 5, 23, tzinfo=ZONE),
)
"""Their windows of 30 days do not overlap, so that no night finds the days of another in the store."""


def measure(home: Path, scratch: Path) -> list[Record]:
    """
    :param home: the repository
    :param scratch: an empty folder
    """
    airflow = MeasuredAirflow(home, scratch / "deployment")
    try:
        airflow.start()
        nights, bare, idle = run_nights(home, scratch, airflow)
    finally:
        airflow.stop()
    return [
        *night_records(nights, bare),
        cost_record(nights, idle),
        *measure_starts(home),
        *measure_parsing(home, scratch / "parsing"),
    ]


def run_nights(home: Path, scratch: Path, airflow: MeasuredAirflow) -> tuple[list[Timed], list[Timed], list[Timed]]:
    """
    Each night by Airflow, as bare processes, and as many do-nothing tasks: in turn, as machines change by the minute.

    :return: those three, a :class:`Timed` for each night
    """
    processes = BareProcesses(home, scratch, airflow.stack.mlflow_url)
    airflow.night(FIRST_NIGHT, WEAK)
    processes.night(FIRST_NIGHT, WEAK)
    airflow.do_nothing(0)
    nights, bare, idle = [], [], []
    for number, date in enumerate(NIGHTS, start=1):
        if number % 2:  # neither is always the one that goes first
            nights.append(airflow.night(date))
            bare.append(processes.night(date))
        else:
            bare.append(processes.night(date))
            nights.append(airflow.night(date))
        idle.append(airflow.do_nothing(number))
    return nights, bare, idle


def night_records(nights: Sequence[Timed], bare: Sequence[Timed]) -> list[Record]:
    """Each step and the whole night, medians over the nights."""
    steps = [
        compare(
            f"pipeline.{step}",
            unit="s",
            ours=median(night.steps[step] for night in nights),
            baseline="bare process",
            baseline_value=median(night.steps[step] for night in bare),
            target=1.2,
        )
        for step in LINE
    ]
    night = compare(
        "pipeline.whole_night",
        unit="s",
        ours=median(night.wall for night in nights),
        baseline="sum of the bare processes",
        baseline_value=median(night.wall for night in bare),
        target=1.25,
    )
    return [*steps, night]


def cost_record(nights: Sequence[Timed], idle: Sequence[Timed]) -> Record:
    """What Airflow adds to the steps' own work, beside runs that have no work."""
    return compare(
        "pipeline.airflow_cost",
        unit="s",
        ours=median(night.wall - night.work for night in nights),
        baseline="six do-nothing tasks",
        baseline_value=median(run.wall for run in idle),
        target=1.2,
    )
