"""The validate step's process against a process that does the same with the whole of TFDV."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.record import Record, compare
from mlops.contract.refs import Ref
from mlops.contract.section import check_section
from mlops.contract.step import STEPS, Failure, RunIdentity, StepInput, python_path, read_result
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import step_argv
from mlops_provider.launchers.process import step_environment
from mlops_provider.spec import SECTIONS

ROUNDS = 3
TABLES: Mapping[str, Mapping[str, Any]] = {
    "2M_x_30": {"kind": "sessions", "event_time": "at", "days": 20, "timezone": "UTC",
                "end": datetime(2024, 3, 1, tzinfo=UTC)},
    "flights": {"kind": "flights", "event_time": "time_hour", "days": 365, "timezone": "America/New_York",
                "end": datetime(2014, 1, 1, 5, tzinfo=UTC)},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a process took."""

    cpu_seconds: float
    peak_megabytes: float


def measure(home: Path, scratch: Path) -> list[Record]:
    records = []
    for name, table in TABLES.items():
        folder = scratch / name
        folder.mkdir()
        ours, full = costs(home, folder, table)
        baseline = "the whole of TFDV, of the same rows in Parquet"
        for what, unit, target in (("cpu_seconds", "CPU s", 1 / 4), ("peak_megabytes", "MB", 1 / 10)):
            records.append(
                compare(
                    f"data.validate_{name}_{'cpu' if what == 'cpu_seconds' else 'memory'}",
                    unit=unit,
                    ours=getattr(ours, what),
                    baseline=baseline,
                    baseline_value=getattr(full, what),
                    target=target,
                )
            )
    return records


def costs(home: Path, folder: Path, table: Mapping[str, Any]) -> tuple[Cost, Cost]:
    """Medians of ours and of TFDV's process, run in turn on one table."""
    source, tfdv = folder / "table.parquet", folder / "tfdv"
    tfdv.mkdir()
    python = home / ".venv/training/bin/python"
    program = [python, "-m", "benchmarks.data.programs.tables", home, table["kind"], source, tfdv / "table.parquet"]
    subprocess.run(program, cwd=home, check=True,
                   env=os.environ | {"PYTHONPATH": python_path(home)})  # fmt: skip
    deployment = Deployment(
        home=home,
        store=f"file://{folder}/store",
        tracking_uri="",
        tracking_url="",
        pythons={runtime: home / f".venv/{runtime}/bin/python" for runtime in ("training", "validation")},
    )
    sources = {"table": {"path": str(source), "event_time": table["event_time"]}}
    ingest = {"sources": sources, "event_time": table["event_time"], "window": table["days"]}
    dataset = succeed(step(deployment, folder, "ingest", ingest, table, None)[0])
    validate: dict[str, Any] = {"schema_path": str(folder / "schema.pbtxt"), "volume": None}
    first = step(deployment, folder, "validate", validate, table, dataset)[0]
    assert isinstance(first, Failure), "the first run proposes a schema"
    (folder / "schema.pbtxt").write_bytes((folder / "store" / first.details["schema"]).read_bytes())
    case = {"name": "all", "statistics": "table.statistics.pb", "schema": "schema.pbtxt", "environment": None,
            "previous_statistics": None, "serving_statistics": None}  # fmt: skip
    (tfdv / "schema.pbtxt").write_bytes((folder / "schema.pbtxt").read_bytes())
    (tfdv / "cases.json").write_text(json.dumps([case]))
    ours, full = [], []
    for number in range(ROUNDS):
        outcome, cost = step(deployment, folder, "validate", validate, table, dataset, number=number)
        succeed(outcome)
        ours.append(cost)
        full.append(spend([home / ".venv/tfdv/bin/python", home / "tests/tfdv/full_tfdv.py", tfdv], home, {}, folder))
    return median(ours), median(full)


def step(
    deployment: Deployment,
    folder: Path,
    name: str,
    settings: Mapping[str, Any],
    table: Mapping[str, Any],
    parent: Ref | None,
    *,
    number: int = 0,
) -> tuple[Ref | Failure | None, Cost]:
    """
    Run a step's process.

    :param number: makes its place another, so that nothing is found committed
    """
    identity = RunIdentity(
        pipeline="validation",
        run_key=f"{table['end']:%Y%m%dT%H%M%SZ}-{number:012d}",
        interval_start=(table["end"] - timedelta(days=1)).isoformat(),
        interval_end=table["end"].isoformat(),
        timezone=table["timezone"],
        dag_id="validation",
        task_id=name,
        run_id="benchmark",
        try_number=1,
    )
    config = check_section(SECTIONS[name], settings, name).model_dump(mode="json")
    document, result = folder / "input.json", folder / "result.json"
    document.write_text(StepInput(step=name, run=identity, config=config, ref=parent).dump())
    result.unlink(missing_ok=True)
    argv = step_argv(str(deployment.pythons[STEPS[name].runtime]), str(document), 0)
    cost = spend(argv, deployment.home, step_environment(deployment, result, os.environ), folder, fails=True)
    return read_result(result), cost


def spend(
    argv: Sequence[str | Path], cwd: Path, environment: Mapping[str, str], folder: Path, *, fails: bool = False
) -> Cost:
    """
    Run a process to its end.

    :param fails: whether that is no matter: a step says in its result document how it ended
    """
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(argv, cwd=cwd, env=environment or None, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
    if process.returncode and not fails:
        raise RuntimeError(f"{argv} failed:\n{(folder / 'log.txt').read_text()[-2000:]}")
    return Cost(cpu_seconds=usage.ru_utime + usage.ru_stime, peak_megabytes=usage.ru_maxrss * 1024 / 1e6)


def succeed(outcome: Ref | Failure | None) -> Ref:
    if not isinstance(outcome, Ref):
        raise RuntimeError(f"a step failed: {outcome}")
    return outcome


def median(costs: Sequence[Cost]) -> Cost:
    ordered = sorted(costs, key=lambda cost: cost.cpu_seconds)
    return ordered[len(ordered) // 2]
