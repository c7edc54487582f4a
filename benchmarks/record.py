"""One measurement beside its baseline, and the file that keeps them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
from rich.table import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What was measured, in turn with its baseline on the same machine in the same minute."""

    name: str
    """``<group>.<what>``, e.g. ``pipeline.whole_night``."""
    unit: str
    ours: float
    baseline: str
    """What it is held against."""
    baseline_value: float
    ratio: float
    """``ours / baseline_value``."""
    better: Literal["higher", "lower"]
    target: float
    """The ratio to reach."""
    machine: str

    def __post_init__(self) -> None:
        group, dot, what = self.name.partition(".")
        if not (group and dot and what):
            raise ValueError(f"a record is named <group>.<what>, got {self.name!r}")

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]

    @property
    def reached(self) -> bool:
        """Whether the ratio is at the target or beyond."""
        return self.ratio >= self.target if self.better == "higher" else self.ratio <= self.target

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    name: str,
    *,
    unit: str,
    ours: float,
    baseline: str,
    baseline_value: float,
    better: Literal["higher", "lower"] = "lower",
    target: float,
) -> Record:
    """
    A record of this machine.

    :param baseline_value: above 0, in the same unit as ``ours``
    """
    return Record(
        name=name,
        unit=unit,
        ours=ours,
        baseline=baseline,
        baseline_value=baseline_value,
        ratio=ours / baseline_value,
        better=better,
        target=target,
        machine=machine(),
    )


def machine() -> str:
    """CPU model, cores this process may use, memory, Python version."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    model = next(models, platform.machine())
    memory = psutil.virtual_memory().total / 1e9
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GB, Python {platform.python_version()}"


def store(path: Path, group: str, records: Iterable[Record]) -> None:
    """Write a group's records into the file; those of the other groups stay."""
    earlier = json.loads(path.read_text()) if path.exists() else []
    others = [entry for entry in earlier if entry["name"].partition(".")[0] != group]
    entries = [*others, *(record.to_json() for record in records)]
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place: an interrupted run leaves the earlier file.
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(entries, indent=1) + "\n")
    draft.replace(path)


def table(group: str, records: Iterable[Record]) -> Table:
    """The records of one group, for people."""
    shown = Table(title=f"{group} ({machine()})", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("name", "ours", "baseline", "", "ratio", "target", ""):
        shown.add_column(heading, justify="right" if heading in ("ours", "ratio", "target") else "left")
    for record in records:
        sign = "≥" if record.better == "higher" else "≤"
        shown.add_row(
            record.name.partition(".")[2],
            f"{record.ours:.3g} {record.unit}",
            f"{record.baseline_value:.3g} {record.unit}",
            record.baseline,
            f"{record.ratio:.2f}",
            f"{sign} {record.target:g}",
            "[green]reached[/green]" if record.reached else "[red]missed[/red]",
        )
    return shown
