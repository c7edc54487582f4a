from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.record import Record, compare, machine, store, table

KEYS = ["name", "unit", "ours", "baseline", "baseline_value", "ratio", "better", "target", "machine"]


def record(name: str, ours: float = 3.0, **changes: object) -> Record:
    settings = {"unit": "s", "baseline": "bare process", "baseline_value": 2.0, "target": 1.6} | changes
    return compare(name, ours=ours, **settings)  # type: ignore[arg-type]


def test_the_fields_of_a_record_are_frozen() -> None:
    """Whoever reads build/bench.json would break."""
    entry = record("pipeline.train").to_json()
    assert list(entry) == KEYS
    assert entry["ratio"] == 1.5
    assert entry["machine"] == machine()


@pytest.mark.parametrize("name", ["train", "pipeline.", ".train"])
def test_a_record_belongs_to_a_group(name: str) -> None:
    """A record without a group would stay in the file for ever."""
    with pytest.raises(ValueError, match=r"<group>\.<what>"):
        record(name)


@pytest.mark.parametrize(
    ("better", "ours", "reached"),
    [("lower", 3.2, True), ("lower", 3.3, False), ("higher", 3.2, True), ("higher", 3.1, False)],
)
def test_the_target_is_a_bound_on_the_ratio(better: str, ours: float, reached: bool) -> None:
    """A miss would be shown as a hit."""
    assert record("pipeline.train", ours, better=better).reached is reached


def test_a_group_replaces_its_own_records_only(tmp_path: Path) -> None:
    """`make bench ONLY=<group>` would lose the other groups' records, or keep stale ones."""
    path = tmp_path / "build/bench.json"
    store(path, "pipeline", [record("pipeline.train"), record("pipeline.gone")])
    store(path, "data", [record("data.read"), record("data.write")])
    store(path, "pipeline", [record("pipeline.train", 5.0)])
    found = {entry["name"]: entry["ours"] for entry in json.loads(path.read_text())}
    assert found == {"data.read": 3.0, "data.write": 3.0, "pipeline.train": 5.0}
    assert [file.name for file in path.parent.iterdir()] == ["bench.json"]


def test_the_table_says_what_was_missed() -> None:
    """A reader would take a missed target for a reached one."""
    console = Console(width=140, file=io.StringIO(), record=True)
    console.print(table("pipeline", [record("pipeline.train", 3.0), record("pipeline.ingest", 4.0)]))
    lines = [line for line in console.export_text().splitlines() if line.strip()]
    assert any(line.split()[0] == "train" and line.rstrip().endswith("reached") for line in lines[2:])
    assert any(line.split()[0] == "ingest" and line.rstrip().endswith("missed") for line in lines[2:])
