"""``mlops init``: a first recipe for a table, which passes lint and trains."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.prompt import Prompt
from rich.table import Table as Shown
from rich.text import Text

from mlops.commands import Places, Subparsers
from mlops.contract.section import NAME_PATTERN, known_time_zone
from mlops.contract.step import BadConfigError, scratch_parent

_NONE: Final = "none"
_OBJECTIVES: Final = ("binary", "multiclass", "regression")
_ABOUT: Final = (
    "Looks at a CSV, JSON lines or Parquet file, and writes include/NAME/features.py and dags/NAME.pipeline.yaml: "
    "which column says when, which is to be predicted, what is learnt, a feature of each other column, and boosted "
    "trees that learn it. In a terminal it asks for what no option says."
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("init", help=__doc__, description=_ABOUT)
    parser.set_defaults(run=_init)
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="*.csv, *.jsonl or *.parquet; .gz, .zip and .zst of text"
    )
    parser.add_argument("--name", help="of the pipeline, its dataset and its model (default: the file's)")
    parser.add_argument(
        "--label", metavar="COLUMN", help="to be predicted (default: one called label or target, or the last)"
    )
    parser.add_argument(
        "--objective", choices=_OBJECTIVES, help="what is learnt (default: what the label's values suggest)"
    )
    parser.add_argument(
        "--event-time",
        metavar="COLUMN",
        help="when a row happened; empty: nothing says it (default: the first column of dates or times)",
    )
    parser.add_argument("--time-zone", default="UTC", metavar="ZONE", help="of dates, and of times without an offset")


def _init(options: argparse.Namespace, places: Places, console: Console) -> int:
    # They import Polars, which --help need not wait for.
    from mlops.first_recipe.files import features_text, pipeline_text
    from mlops.first_recipe.proposal import likely_label, likely_time, propose
    from mlops.first_recipe.table import read_table

    name = _name(options)
    written = [places.home / f"include/{name}/features.py", places.home / f"dags/{name}.pipeline.yaml"]
    for path in written:
        if path.exists():
            raise BadConfigError(f"{path} is there already: call the new pipeline otherwise by --name")
    try:
        known_time_zone(options.time_zone)
    except ValueError as error:
        raise BadConfigError(f"--time-zone {options.time_zone}: must be {error}") from None
    now, asks = datetime.now(UTC), sys.stdin.isatty() and sys.stdout.isatty()
    with tempfile.TemporaryDirectory(prefix="init-", dir=scratch_parent()) as scratch:
        table = read_table(options.file, places.home, Path(scratch), now)
        label, event_time = options.label, options.event_time
        if asks and label is None:
            columns, likely = table.rows.columns, likely_label(table)
            label = Prompt.ask("Which column is to be predicted?", choices=columns, default=likely, console=console)
        if asks and event_time is None and (instants := [name for name in table.instants() if name != label]):
            question, likely = "Which column says when a row happened?", likely_time(table, instants) or _NONE
            answer = Prompt.ask(question, choices=[*instants, _NONE], default=likely, console=console)
            event_time = "" if answer == _NONE else answer
        today = now.astimezone(ZoneInfo(options.time_zone)).date()
        proposal = propose(
            table, label=label, objective=options.objective, event_time=event_time, zone=options.time_zone, today=today
        )  # fmt: skip
    texts = [features_text(name, proposal), pipeline_text(name, table, proposal, today)]
    _write(dict(zip(written, texts, strict=True)))
    shown = Shown("column", "type", "use")
    for column, dtype in table.rows.schema.items():
        if column == proposal.label:
            use = f"the label, learnt as {proposal.objective}"
        elif proposal.time is not None and column == proposal.time.column:
            use = f"the time, by {proposal.time.grain}s"
        else:
            use = proposal.transforms.get(column) or f"left out: {proposal.left_out[column]}"
        shown.add_row(Text(column), str(dtype), Text(use))
    console.print(shown)
    if table.num_rows > table.rows.height:
        console.print(f"this is by the first {table.rows.height:,} of {table.num_rows:,} rows")
    if missing := table.source.get("null_values", ["NA"])[1:]:
        console.print(f"taken for no value: {', '.join(map(repr, missing))}", markup=False, soft_wrap=True)
    for note in proposal.notes:
        console.print(note, style="yellow", markup=False, soft_wrap=True)
    for path in written:
        console.print(f"wrote {path.relative_to(places.home)}", markup=False, soft_wrap=True)
    console.print(
        f"look at both, then:\n  mlops lint --with-data {written[1].relative_to(places.home)}\n  mlops run {name}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    return 0


def _write(texts: Mapping[Path, str]) -> None:
    """
    Write new files, all or none: the next try would refuse a pipeline of which one is there.

    :raises BadConfigError: where one cannot be written
    """
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except BaseException as error:  # Ctrl-C, too
        for each in texts:
            with contextlib.suppress(OSError):
                each.unlink()
        if isinstance(error, OSError):
            raise BadConfigError(f"cannot write {path}: {error.strerror}; nothing was written") from error
        raise


def _name(options: argparse.Namespace) -> str:
    """The name of the pipeline: what is said, or that of the file, in the letters that a name may have."""
    from mlops.first_recipe.files import WORDS

    asked: str | None = options.name
    name = asked or re.sub(r"[^a-z0-9]+", "_", options.file.name.partition(".")[0].lower()).strip("_")
    if re.fullmatch(NAME_PATTERN, name) and name not in WORDS:
        return name
    if asked is not None:
        taken = ", and is no word of YAML" if asked in WORDS else ""
        raise BadConfigError(f"--name {asked}: must be lower-case letters, digits and underscores{taken}")
    return f"table_{name}".rstrip("_")
