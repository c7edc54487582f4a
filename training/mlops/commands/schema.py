"""``mlops schema``: what a schema.pbtxt would need for the newest data to fit."""

from __future__ import annotations

import argparse
import difflib
import os
import tempfile
from pathlib import Path

from rich.console import Console
from tensorflow_metadata.proto.v0 import schema_pb2

from mlops.commands import Places, Subparsers
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.snapshots.catalog import find_snapshot
from mlops.store import Store
from mlops.validation.first_schema import Described, first_schema, proposal_in_force
from mlops.validation.proposal import revise_schema
from mlops.validation.rows import Rows
from mlops.validation.schema import Schema, read_schema
from mlops.validation.schema_text import revise_text


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("schema", help=__doc__, description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    text = "print the change of the schema that a snapshot would need, as a patch; exit code 1 where there is one"
    propose = commands.add_parser("propose", help=text, description=text)
    propose.set_defaults(run=_propose)
    propose.add_argument("pipeline", metavar="PIPELINE")
    propose.add_argument("--snapshot", metavar="VERSION|DATE", help="instead of the newest one")
    propose.add_argument("--schema", metavar="PATH", help="relative to the project folder (default: the pipeline's)")
    propose.add_argument(
        "--label", action="append", default=[], metavar="COLUMN",
        help="a column that is not known when the model is asked: the label, an outcome; may be given several times",
    )  # fmt: skip
    propose.add_argument("--write", action="store_true", help="change the file too, to be reviewed and committed")


def _propose(options: argparse.Namespace, places: Places, console: Console) -> int:
    if options.schema is None:
        raise BadConfigError(
            f"there is no dags/{options.pipeline}.pipeline.yaml that says where the schema is; "
            f"say it, for example --schema include/{options.pipeline}/schema.pbtxt"
        )
    if (places.home / options.schema).is_dir():
        raise BadConfigError(f"--schema {options.schema}: is a folder; name a file in it, such as schema.pbtxt")
    path, notes = places.home / options.schema, Console(stderr=True, highlight=False, soft_wrap=True)
    at = f"@{options.snapshot}" if options.snapshot else ""
    snapshot = find_snapshot(places.store, f"{options.pipeline}{at}")
    with tempfile.TemporaryDirectory(prefix="mlops-schema-") as cache:
        rows = Rows.of(snapshot.open(places.store), Path(cache))
        if not rows.total:
            raise BadDataError(f"{snapshot.name} has no rows to propose a schema from")
        described = Described.of(rows)
        if unknown := sorted(set(options.label) - set(described.rows.schema)):
            columns = ", ".join(described.rows.schema)
            raise BadConfigError(f"--label {unknown[0]}: {snapshot.name} has no such column; it has {columns}")
        notes.print(f"{snapshot.name}: {described.window}", markup=False)
        try:
            schema = read_schema(path, options.schema)
        except FileNotFoundError:
            return _first(options, path, described, places.store, console, notes)
        return _revision(options, path, schema, described, console, notes)


def _first(
    options: argparse.Namespace, path: Path, described: Described, store: Store, console: Console, notes: Console
) -> int:
    schema = None if options.snapshot else _in_force(options, store)
    if schema is None:
        text = first_schema(described, options.label)
    else:
        assert schema.proposal is not None
        proto = _revised(schema, described, options)
        text = revise_text(schema.proposal.decode(), schema.proto, proto)
        notes.print(
            "This is what the runs are held against, with what the newest snapshot needs; --snapshot proposes another "
            "one.",
            markup=False,
        )
        for anomaly in described.anomalies(schema):
            notes.print(f"did not fit: {anomaly.line}", markup=False)
    console.out(text, highlight=False, end="")
    if options.write:
        _replace(path, text)
        notes.print(f"Written to {path}. Review it, and commit it.", markup=False)
        return 0
    notes.print(
        f"There is no {options.schema} yet: this is a whole one. To save it, say --write; then review and commit it.",
        markup=False,
    )
    return 1


def _in_force(options: argparse.Namespace, store: Store) -> Schema | None:
    try:
        return proposal_in_force(store, options.pipeline, options.schema)
    except BadConfigError:  # there was a file, and another one is asked for
        return None


def _revision(
    options: argparse.Namespace, path: Path, schema: Schema, described: Described, console: Console, notes: Console
) -> int:
    proto = _revised(schema, described, options)
    before = path.read_text("utf-8")
    after = revise_text(before, schema.proto, proto)
    for anomaly in described.anomalies(schema):
        notes.print(f"does not fit: {anomaly.line}", markup=False)
    for line in difflib.unified_diff(
        before.splitlines(), after.splitlines(), options.schema, options.schema, lineterm=""
    ):
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[0], "")
        console.print(line, style=style, markup=False, soft_wrap=True)
    revised = Schema(path=schema.path, proto=proto, sha256="")
    for anomaly in described.anomalies(revised):
        notes.print(f"still does not fit, for no column's description could allow it: {anomaly.line}", markup=False)
    if before == after:
        notes.print(f"{options.schema} needs no change", markup=False)
        return 0
    if options.write:
        _replace(path, after)
        notes.print(f"Written to {path}. Review it, and commit it.", markup=False)
        return 0
    notes.print("Take over what is right of it, or all with --write; then commit it.", markup=False)
    return 1


def _revised(schema: Schema, described: Described, options: argparse.Namespace) -> schema_pb2.Schema:
    return revise_schema(schema.proto, list(described.datasets.values()), described.rows.schema, options.label)


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, "utf-8")
    partial.replace(path)
