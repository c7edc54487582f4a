"""Text output for snapshots and their differences, 80 columns wide."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from mlops.contract.grain import counted
from mlops.contract.manifest import ColumnsDiff
from mlops.data.snapshots.catalog import CommittedSnapshot
from mlops.data.snapshots.snapshot_diff import RowsDiff


def show_snapshot(snapshot: CommittedSnapshot, console: Console) -> None:
    manifest = snapshot.manifest
    console.print(f"[bold]{escape(snapshot.ref.name)}[/bold]  {snapshot.ref.version}", soft_wrap=True)
    if mark := snapshot.deprecation:
        console.print(f"DEPRECATED since {mark.at} by {mark.by}: {mark.reason}", style="red", markup=False)
    kind = f"{manifest.grain}s of {manifest.timezone}"
    facts = {
        "interval": f"{snapshot.ref.interval_start} to {snapshot.ref.interval_end}, {kind}",
        "rows": f"{snapshot.ref.num_rows:,}",
        "size": f"{decimal(snapshot.ref.num_bytes)} in {len(manifest.blobs)} blobs",
        "committed": f"{snapshot.committed:%Y-%m-%d %H:%M:%S} UTC",
        "place": snapshot.ref.place,
        "created by": _inline(manifest.creator),
        "engine": manifest.engine,
        "event time": manifest.event_time,
        "split": _inline(manifest.split),
        "schema hash": manifest.schema_hash[:12],
    }
    grid = _grid()
    for name, value in facts.items():
        if value:
            grid.add_row(name, escape(str(value)))
    console.print(grid)

    columns = _grid("column", "type")
    for name, dtype in manifest.schema.items():
        columns.add_row(escape(name), escape(dtype))
    console.print("\n[bold]columns[/bold]", columns)

    splits = _grid("split", "rows", f"{manifest.grain}s", "first", "last")
    for name, part in manifest.splits.items():
        first, last = (part.periods[0], part.periods[-1]) if part.periods else ("", "")
        splits.add_row(name, f"{part.num_rows:,}", str(len(part.periods)), first, last)
    console.print("\n[bold]splits[/bold]", splits)

    periods = _grid(manifest.grain, "rows", "size", "blobs", "rows of a blob")
    for partition in manifest.partitions:
        rows = [blob.num_rows for blob in partition.blobs]
        spread = f"{min(rows):,}" if min(rows) == max(rows) else f"{min(rows):,} to {max(rows):,}"
        size = decimal(partition.num_bytes)
        periods.add_row(partition.period, f"{partition.num_rows:,}", size, str(len(rows)), spread)
    console.print(f"\n[bold]{manifest.grain}s[/bold]", periods)

    for name, source in manifest.sources.items():
        console.print(f"\n[bold]source {escape(name)}[/bold]")
        console.out(json.dumps(source, indent=1, ensure_ascii=False), highlight=False)


def show_difference(
    before: CommittedSnapshot,
    after: CommittedSnapshot,
    columns: ColumnsDiff,
    periods: Sequence[RowsDiff],
    console: Console,
) -> None:
    console.print(f"[bold]{escape(before.name)}[/bold] to [bold]{escape(after.name)}[/bold]", soft_wrap=True)
    if not columns and not periods:
        console.print("no difference")
        return
    if columns:
        table = _grid("column", "", "type")
        for name, dtype in columns.added.items():
            table.add_row(escape(name), "added", escape(dtype))
        for name, dtype in columns.removed.items():
            table.add_row(escape(name), "removed", escape(dtype))
        for name, (old, new) in columns.retyped.items():
            table.add_row(escape(name), "retyped", escape(f"{old} to {new}"))
        console.print("\n[bold]columns[/bold]", table)
    # A column more or less is other bytes for each period, and no news of its rows.
    periods = [each for each in periods if each.added or each.removed or each.changed]
    held = {part.period for manifest in (before.manifest, after.manifest) for part in manifest.partitions}
    number = f"{len(held) - len(periods)} of {counted(len(held), after.manifest.grain)}"
    console.print(f"\n[bold]rows[/bold] ({number} have equal rows)")
    if not periods:
        return
    table = _grid(after.manifest.grain, "added", "removed", "changed", "columns that changed")
    for each in periods:
        changed = ", ".join(f"{name} ({count:,})" for name, count in each.columns.items())
        table.add_row(each.period, f"{each.added:,}", f"{each.removed:,}", f"{each.changed:,}", escape(changed))
    console.print(table)
    for each in periods:
        for example in each.examples:
            console.print(f"\n{each.period}  {_inline(example['key'])}", markup=False)
            for name, value in example["before"].items():
                console.print(f"  {name}: {value!r} -> {example['after'][name]!r}", markup=False)


def _grid(*headers: str) -> Table:
    """Make a table with numbers to the right, whose last column takes the remaining room."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=bool(headers))
    for header in headers or ("", ""):
        numeric = header in ("rows", "hours", "days", "weeks", "months", "size", "blobs", "added", "removed", "changed")
        table.add_column(header, justify="right" if numeric else "left", overflow="fold")
    return table


def _inline(document: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (document or {}).items() if value is not None)
