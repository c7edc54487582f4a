"""``mlops submitted``: what Airflow was asked to try out, and how it goes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlops.client import Client, RunSummary
from mlops.contract.rest import FINISHED
from mlops_provider.handed_over import aside, client_of, find_stack, print_json
from mlops_provider.looking import watched

_STYLES: Final[Mapping[str, str]] = {"success": "green", "failed": "red", "running": "cyan"}


def submitted(options: argparse.Namespace, console: Console) -> int:
    """Print the newest runs as a table; where asked for, anew until all of them have ended."""
    out = aside() if options.json else None
    find_stack(options)
    with client_of(options) as client:
        runs = _watch(client, options, console) if options.watch else _runs(client, options)
    if out is not None:
        print_json([run.model_dump(mode="json") for run in runs], out)
    elif not runs:
        console.print(f"there are none{_of(options)}; mlops submit has Airflow try a pipeline out", markup=False)
    elif not options.watch:
        console.print(_table(runs))
    return 0


def _of(options: argparse.Namespace) -> str:
    said = (("of", options.pipeline), ("by", options.by), ("in state", options.state))
    return "".join(f" {word} {value}" for word, value in said if value is not None)


def _runs(client: Client, options: argparse.Namespace) -> Sequence[RunSummary]:
    return client.runs(options.pipeline, kind=options.kind, user=options.by, state=options.state, most=options.most)


def _watch(client: Client, options: argparse.Namespace, console: Console) -> Sequence[RunSummary]:
    def show(runs: Sequence[RunSummary]) -> Table | None:
        return _table(runs) if runs else None

    def are_over(runs: Sequence[RunSummary]) -> bool:
        return all(run.state in FINISHED for run in runs)

    return watched(lambda: _runs(client, options), show, are_over, console)


def _table(runs: Sequence[RunSummary]) -> Table:
    table = Table()
    table.add_column("run", overflow="fold")  # whole: it is what the other commands take
    for heading in ("state", "by"):
        table.add_column(heading)
    table.add_column("asked for", overflow="fold")
    table.add_column("asked at, UTC")
    table.add_column("took", justify="right")
    for run in runs:
        state = Text(run.state, style=_STYLES.get(run.state, ""))
        at = f"{run.queued_at.astimezone(UTC):%m-%d %H:%M:%S}" if run.queued_at is not None else ""
        table.add_row(Text(run.id), state, run.user or "schedule", Text(_asked(run.asked)), at, _took(run))
    return table


def _asked(asked: Mapping[str, Any]) -> str:
    """In a line: the settings, and then the rest, but for what was left empty in Airflow's form."""
    settings = [f"{name}={_short(value)}" for name, value in (asked.get("settings") or {}).items()]
    others = [f"{name} {_short(value)}" for name, value in asked.items() if name != "settings" and value is not None]
    return ", ".join([*settings, *others])


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _took(run: RunSummary) -> str:
    if run.started_at is None:
        return ""
    seconds = round(((run.ended_at or datetime.now(UTC)) - run.started_at).total_seconds())
    return str(timedelta(seconds=max(seconds, 0)))
