"""``mlops datasets``: list, show, compare, deprecate and verify snapshots; collect garbage."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import socket
from dataclasses import asdict
from datetime import timedelta
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table

from mlops.commands import Places, Subparsers
from mlops.commands.datasets_text import show_difference, show_snapshot
from mlops.contract.manifest import compare_columns, differing_periods
from mlops.contract.step import BadConfigError, deprecation_key
from mlops.data.snapshots.catalog import CommittedSnapshot, find_snapshot, read_catalog
from mlops.data.snapshots.deprecation import deprecate
from mlops.data.snapshots.garbage import collect
from mlops.data.snapshots.snapshot_diff import compare_period
from mlops.data.snapshots.snapshot_verification import find_damage

_SNAPSHOT = "NAME, NAME@VERSION (its first 6 characters do, where no other begins so) or NAME@YYYY-MM-DD (last day)"
_MOST_HOURS = 876_000


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("datasets", help=__doc__, description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, text: str, *, as_json: bool = True) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        if as_json:
            sub.add_argument("--json", action="store_true", help="print JSON")
        return sub

    sub = command("list", _list, "the snapshots of one dataset, or of all")
    sub.add_argument("name", nargs="?", metavar="NAME")
    sub = command("show", _show, "what is in a snapshot, and where it came from")
    sub.add_argument("snapshot", metavar="SNAPSHOT", help=_SNAPSHOT)
    sub = command("diff", _diff, "columns, days and rows that differ; exit code 1 where any do")
    sub.add_argument("before", metavar="A", help=_SNAPSHOT)
    sub.add_argument("after", metavar="B", help="the same")
    sub.add_argument(
        "--key", type=lambda text: text.split(","), default=[], metavar="COLUMN,...",
        help="columns that identify a row (default: inferred for each day)",
    )  # fmt: skip
    sub = command("deprecate", _deprecate, "let no new work start from a snapshot; it stays readable", as_json=False)
    sub.add_argument("snapshot", metavar="NAME@VERSION")
    sub.add_argument("--reason", required=True, metavar="TEXT", help="what the steps that refuse it will say")
    sub = command("verify", _verify, "read every object and check its digest; exit code 1 where one is damaged")
    sub.add_argument("name", nargs="?", metavar="NAME")
    sub = command("gc", _gc, "remove blobs that no manifest names", as_json=False)
    sub.add_argument(
        "--grace-hours", type=_hours, default=168.0, metavar="HOURS",
        help="keep younger ones: longer than any ingest takes (default: %(default)g)",
    )  # fmt: skip
    sub.add_argument("--dry-run", action="store_true", help="only say what would be removed")


def _list(options: argparse.Namespace, places: Places, console: Console) -> int:
    catalog = read_catalog(places.store, options.name)
    if options.json:
        _print_json(console, [item.to_document() for item in catalog.snapshots])
    elif not catalog.snapshots and not catalog.damaged:
        console.print("no snapshots yet")
    for name, items in [] if options.json else groupby(catalog.snapshots, key=lambda item: item.ref.name):
        console.print(_table_of(name, list(items)))
    for error in catalog.damaged:
        Console(stderr=True).print(str(error), style="red", markup=False, soft_wrap=True)
    return 1 if catalog.damaged else 0


def _table_of(name: str, snapshots: list[CommittedSnapshot]) -> Table:
    table = Table(title=name, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for header in ("last", "version"):
        table.add_column(header, no_wrap=True)
    for header in ("periods", "rows", "size"):
        table.add_column(header, no_wrap=True, justify="right")
    table.add_column("committed", no_wrap=True)
    table.add_column("by", overflow="fold")
    for item in reversed(snapshots):
        periods, version = str(len(item.manifest.partitions)), item.ref.version[:12]
        by = item.manifest.creator.get("run_id", "unknown")
        by = f"DEPRECATED: {item.deprecation.reason}" if item.deprecation else by
        table.add_row(
            item.last, version, periods, f"{item.ref.num_rows:,}", decimal(item.ref.num_bytes),
            f"{item.committed:%Y-%m-%d}", escape(by), style="dim" if item.deprecation else "",
        )  # fmt: skip
    return table


def _show(options: argparse.Namespace, places: Places, console: Console) -> int:
    snapshot = find_snapshot(places.store, options.snapshot)
    if options.json:
        _print_json(console, snapshot.to_document())
    else:
        show_snapshot(snapshot, console)
    return 0


def _diff(options: argparse.Namespace, places: Places, console: Console) -> int:
    before, after = find_snapshot(places.store, options.before), find_snapshot(places.store, options.after)
    columns = compare_columns(before.manifest, after.manifest)
    periods = differing_periods(before.manifest, after.manifest)
    old, new = before.open(places.store), after.open(places.store)
    rows = []
    with _progress(console, "periods", MofNCompleteColumn()) as bar:
        task = bar.add_task("comparing", total=len(periods))
        for period in periods:
            rows.append(compare_period(old, new, period, options.key))
            bar.advance(task)
    if options.json:
        document = {"before": before.name, "after": after.name, "columns": asdict(columns)}
        _print_json(console, {**document, "periods": [asdict(each) for each in rows]})
    else:
        show_difference(before, after, columns, rows, console)
    return 1 if columns or periods else 0


def _deprecate(options: argparse.Namespace, places: Places, console: Console) -> int:
    if "@" not in options.snapshot or "-" in options.snapshot.partition("@")[2]:
        raise BadConfigError(
            f"say which version to deprecate, as NAME@VERSION, not {options.snapshot!r}; `mlops datasets list` has them"
        )
    if not options.reason.strip():
        raise BadConfigError("--reason is empty; say why, for whoever finds it refused")
    ref = find_snapshot(places.store, options.snapshot).ref
    mark = deprecate(places.store, ref.name, ref.version, reason=options.reason, by=_user())
    console.print(
        f"{ref.name}@{ref.version[:12]} is deprecated, since {mark.at} by {mark.by}: {mark.reason}\n"
        f"To take it back, delete {deprecation_key(ref.name, ref.version)} from {places.store.uri}",
        markup=False,
        soft_wrap=True,
    )
    if mark.reason != options.reason:
        raise BadConfigError("it was deprecated before; that mark and its reason stay")
    return 0


def _verify(options: argparse.Namespace, places: Places, console: Console) -> int:
    catalog = read_catalog(places.store, options.name)
    with _progress(console, "bytes", DownloadColumn()) as bar:
        task = bar.add_task("verifying", total=None)
        damage = find_damage(
            places.store, catalog.snapshots, lambda done, total: bar.update(task, completed=done, total=total)
        )
    problems = [*map(str, catalog.damaged), *(item.problem for item in damage)]
    if options.json:
        _print_json(
            console,
            {
                "snapshots": len(catalog.snapshots),
                "unreadable": [str(error) for error in catalog.damaged],
                "damaged": [asdict(item) for item in damage],
            },
        )
        return 1 if problems else 0
    for error in catalog.damaged:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
    for item in damage:
        console.print(item.problem, style="red", markup=False, soft_wrap=True)
        console.print(f"  needed by {', '.join(item.snapshots)}", markup=False, soft_wrap=True)
    if not problems:
        objects = {key: a.num_bytes for item in catalog.snapshots for key, a in item.artifacts().items()}
        console.print(
            f"{len(catalog.snapshots)} snapshots are whole: {len(objects)} objects, {decimal(sum(objects.values()))}"
        )
    return 1 if problems else 0


def _gc(options: argparse.Namespace, places: Places, console: Console) -> int:
    with _progress(console, "blobs", MofNCompleteColumn()) as bar:
        task = bar.add_task("removing", total=None)
        done = collect(
            places.store,
            grace=timedelta(hours=options.grace_hours),
            dry_run=options.dry_run,
            progress=lambda count, total: bar.update(task, completed=count, total=total),
        )
    size = decimal(sum(blob.num_bytes for blob in done.removed))
    for blob in done.removed if options.dry_run else ():
        console.print(f"{blob.modified:%Y-%m-%d %H:%M}  {decimal(blob.num_bytes):>10}  {blob.key}", soft_wrap=True)
    console.print(
        f"{'would remove' if options.dry_run else 'removed'} {len(done.removed)} blobs, {size}; kept {done.named} that "
        f"manifests name and {done.young} younger than {options.grace_hours:g} hours",
        soft_wrap=True,
    )
    for key in done.restored:
        console.print(f"put back {key}, which a manifest came to name", soft_wrap=True)
    return 0


def _progress(console: Console, unit: str, counts: ProgressColumn) -> Progress:
    # On stderr, and only for people: what is piped stays clean.
    shown = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        counts,
        TextColumn(unit),
        console=shown,
        transient=True,
        disable=not shown.is_terminal,
    )


def _print_json(console: Console, document: Any) -> None:
    console.out(json.dumps(document, indent=1, ensure_ascii=False, default=str), highlight=False)


def _hours(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of hours, got {text!r}") from None
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be > 0, got {text}: an ingest at work needs its new blobs")
    if value > _MOST_HOURS:
        raise argparse.ArgumentTypeError(f"must be at most {_MOST_HOURS}, a hundred years, got {text}")
    return value


def _user() -> str:
    """Return the name of the user, also in a container whose user has none."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"user {os.getuid()}"
    return f"{name}@{socket.gethostname()}"
