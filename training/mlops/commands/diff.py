"""``mlops diff``: what differs between two trainings: data, code, environment, parameters, metrics."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlops.commands import Places, Subparsers
from mlops.contract.refs import CheckpointRef, ReportRef, TrialRef
from mlops.contract.rest import DifferencePart, TrainingDifference
from mlops.contract.step import BadConfigError
from mlops.contract.training_difference import ComparedTraining, differences, what_to_read

_RUN = "MODEL/VERSION, by number or alias, or the id of an MLflow run of a training"


def add_parser(subparsers: Subparsers) -> None:
    text = f"{__doc__.partition(': ')[2].capitalize()} Exit code 1 where anything does."
    parser = subparsers.add_parser("diff", help=__doc__, description=text)
    parser.set_defaults(run=_diff)
    parser.add_argument("a", metavar="RUN_A", help=_RUN)
    parser.add_argument("b", metavar="RUN_B", help="the same")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _diff(options: argparse.Namespace, places: Places, console: Console) -> int:
    named = options.a, options.b
    a, b = (_read(places, each) for each in named)
    before, after = (each if "/" in each else each[:12] for each in named)
    found = TrainingDifference(before=before, after=after, parts=differences(a, b, (before, after)))
    if options.json:
        console.out(found.model_dump_json(indent=1), highlight=False)
    else:
        for part in found.parts:
            _show(part, before, after, console)
    return 0 if found.is_equal else 1


def _read(places: Places, named: str) -> ComparedTraining:
    """Read a training."""
    checkpoint, report = _find(places, named)
    objects = {artifact.key: places.store.read(artifact) for artifact in what_to_read(checkpoint)}
    return ComparedTraining.of(checkpoint, report, objects)


def _find(places: Places, named: str) -> tuple[CheckpointRef, ReportRef | None]:
    """Find a training. Imports mlflow here, so that --help need not wait for it."""
    from mlops.registry.versions import read_version
    from mlops.tracking.connection import connect
    from mlops.tracking.run import reopen_run

    if "/" in named:
        report = read_version(places.tracking_uri, named).report
        return report.ancestor(CheckpointRef), report
    place = reopen_run(connect(places.tracking_uri), named).tag("mlops.place")
    if place is None:
        raise BadConfigError(f"run {named} is no training of a pipeline: it has no tag 'mlops.place'")
    checkpoint = places.store.committed(place)
    if isinstance(checkpoint, TrialRef):
        raise BadConfigError(f"run {named} is a trial of a study, which keeps no model: name the training after it")
    if not isinstance(checkpoint, CheckpointRef):
        raise BadConfigError(f"run {named} has no result in {places.store.uri}: its training has not ended well yet")
    return checkpoint, None


def _show(part: DifferencePart, before: str, after: str, console: Console) -> None:
    if part.is_equal:
        console.print(Text(f"{part.name:<12}", "bold") + Text(f"equal: {part.said}", "green"), soft_wrap=True)
        return
    console.print(Text(part.name, "bold"))
    table = Table(box=None, padding=(0, 2, 0, 2))
    for header in ("", before, after):
        table.add_column(Text(header), overflow="fold")
    for item in part.differences:
        table.add_row(*(Text(value) for value in (item.what, item.before, item.after)))
    if part.differences:
        console.print(table)
    for line in part.patch.splitlines():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        console.print(Text(f"  {line}", style), soft_wrap=True)
