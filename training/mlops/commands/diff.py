"""``mlops diff``: what differs between two trainings: data, code, environment, parameters, metrics."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlops.commands import Places, Subparsers
from mlops.contract.refs import CheckpointRef, TrialRef
from mlops.contract.step import BadConfigError

if TYPE_CHECKING:
    from mlops.reproduction.run_diff import DiffPart, Run

_RUN = "MODEL/VERSION, by number or alias, or the id of an MLflow run of a training"


def add_parser(subparsers: Subparsers) -> None:
    text = f"{__doc__.partition(': ')[2].capitalize()} Exit code 1 where anything does."
    parser = subparsers.add_parser("diff", help=__doc__, description=text)
    parser.set_defaults(run=_diff)
    parser.add_argument("a", metavar="RUN_A", help=_RUN)
    parser.add_argument("b", metavar="RUN_B", help="the same")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _diff(options: argparse.Namespace, places: Places, console: Console) -> int:
    from mlops.reproduction.run_diff import compare_runs

    a, b = (_read(places, named) for named in (options.a, options.b))
    parts = compare_runs(places.store, a, b)
    if options.json:
        document = {"a": a.name, "b": b.name, **{part.name: _document(part) for part in parts}}
        console.out(json.dumps(document, indent=1, ensure_ascii=False), highlight=False)
    else:
        for part in parts:
            _show(part, a.name, b.name, console)
    return 1 if any(parts) else 0


def _read(places: Places, named: str) -> Run:
    """Read a training. Imports mlflow here, so that --help need not wait for it."""
    from mlops.registry.versions import read_version
    from mlops.reproduction.original import Original
    from mlops.reproduction.run_diff import Run
    from mlops.tracking.connection import connect
    from mlops.tracking.run import reopen_run

    if "/" in named:
        report = read_version(places.tracking_uri, named).report
        original = Original.read(places.store, report.ancestor(CheckpointRef))
        return Run(name=named, original=original, report=report)
    place = reopen_run(connect(places.tracking_uri), named).tag("mlops.place")
    if place is None:
        raise BadConfigError(f"run {named} is no training of a pipeline: it has no tag 'mlops.place'")
    checkpoint = places.store.committed(place)
    if isinstance(checkpoint, TrialRef):
        raise BadConfigError(f"run {named} is a trial of a study, which keeps no model: name the training after it")
    if not isinstance(checkpoint, CheckpointRef):
        raise BadConfigError(f"run {named} has no result in {places.store.uri}: its training has not ended well yet")
    return Run(name=named[:12], original=Original.read(places.store, checkpoint), report=None)


def _document(part: DiffPart) -> dict[str, object]:
    differences = {} if not part else {"differences": [asdict(item) for item in part.differences], "patch": part.patch}
    return {"equal": not part, **differences}


def _show(part: DiffPart, a: str, b: str, console: Console) -> None:
    if not part:
        console.print(Text(f"{part.name:<12}", "bold") + Text(f"equal: {part.equal}", "green"), soft_wrap=True)
        return
    console.print(Text(part.name, "bold"))
    table = Table(box=None, padding=(0, 2, 0, 2))
    for header in ("", a, b):
        table.add_column(Text(header), overflow="fold")
    for item in part.differences:
        table.add_row(*(Text(value) for value in (item.what, item.a, item.b)))
    if part.differences:
        console.print(table)
    for line in part.patch.splitlines():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        console.print(Text(f"  {line}", style), soft_wrap=True)
