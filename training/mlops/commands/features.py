"""``mlops features``: what pipelines publish in the feature store, one row read back, a lost store filled again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from mlops.commands import Places, Subparsers
from mlops.contract.step import BadConfigError
from mlops.feature_store.registry import AS_OF_TAG, published_pipelines
from mlops.feature_store.repository import (
    OnlineRow,
    entity_types,
    online_config,
    open_view,
    publish_again,
    read_rows,
)

if TYPE_CHECKING:
    from feast import FeatureView

NOT_SERVED: Final = 1
"""Exit code if a server would get nothing: missing, or expired."""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("features", help=__doc__, description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print JSON")
        return sub

    command("list", _list, "the pipelines that publish features")
    sub = command("publish", _publish, "put a pipeline's last features online again, where the store lost them")
    sub.add_argument("pipeline", metavar="PIPELINE")
    sub = command("get", _get, "an entity's online features; exit code 1 where it has none, or they are expired")
    sub.add_argument("pipeline", metavar="PIPELINE")
    sub.add_argument(
        "--entity", action="append", default=[], metavar="COLUMN=VALUE", help="once for each column of the entity"
    )
    sub.add_argument(
        "--as-of", type=_instant, default=None, metavar="TIME", help="tell age and expiry as of then (default: now)"
    )


def _list(options: argparse.Namespace, places: Places, console: Console) -> int:
    rows = [_summary(name, open_view(places.store, name)) for name in published_pipelines(places.store)]
    if options.json:
        _print_json(console, rows)
        return 0
    if not rows:
        console.print(
            "nothing is published; a pipeline publishes where it has a section features.online", soft_wrap=True
        )
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0))
    for header in ("pipeline", "entity", "features", "as of (UTC)", "online", "time to live"):
        table.add_column(header, justify="right" if header == "features" else "left", overflow="fold")
    for row in rows:
        ttl = "for ever" if row["ttl_hours"] is None else f"{row['ttl_hours']:g} h"
        as_of = f"{datetime.fromisoformat(row['as_of']):%Y-%m-%d %H:%M}"
        table.add_row(row["pipeline"], ", ".join(row["entity"]), str(row["num_features"]), as_of, row["online"], ttl)
    console.print(table)
    return 0


def _summary(pipeline: str, view: FeatureView) -> dict[str, Any]:
    online = online_config(view)
    return {
        "pipeline": pipeline,
        "entity": view.join_keys,
        "num_features": len(view.features) - 1,  # the place is none
        "as_of": view.tags[AS_OF_TAG],
        "online": online.store if online.connection is None else f"{online.store} ({online.connection})",
        "ttl_hours": online.ttl_hours,
    }


def _publish(options: argparse.Namespace, places: Places, console: Console) -> int:
    written = publish_again(places.store, options.pipeline)
    if options.json:
        _print_json(console, {"pipeline": options.pipeline, "written": written})
    else:
        console.print(f"{options.pipeline}: {written} entities written; what was there stays", markup=False)
    return 0


def _get(options: argparse.Namespace, places: Places, console: Console) -> int:
    view = open_view(places.store, options.pipeline)
    entity = _entity(options.entity, view)
    [row] = read_rows(places.store, view, [entity])
    now = options.as_of or datetime.now(UTC)
    if options.json:
        _print_json(console, _document(options.pipeline, entity, row, now))
    else:
        said = " ".join(f"{name}={value}" for name, value in entity.items())
        console.print(f"{options.pipeline}  {said}", markup=False, soft_wrap=True)
        _show(row, now, console)
    return 0 if _status(row, now) == "served" else NOT_SERVED


def _show(row: OnlineRow | None, now: datetime, console: Console) -> None:
    if row is None:
        console.print(
            "missing: the online store has no row of it, or one of another version of the feature set", soft_wrap=True
        )
        return
    age = f"{_duration(now - row.event_time)} old"
    ttl = "no time to live" if row.ttl is None else f"time to live {_duration(row.ttl)}"
    said = {"served": "served", "expired": "expired: a server is given nothing"}[_status(row, now)]
    for line in (f"{said}; {age}, {ttl}", f"event time  {row.event_time:%Y-%m-%d %H:%M:%S} UTC"):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"made by     {row.features_place}", markup=False, soft_wrap=True)
    table = Table("feature", box=None, padding=(0, 2, 0, 0))
    table.add_column("value", justify="right")
    for name, value in row.features.items():
        table.add_row(name, str(np.float32(value)))
    console.print(table, markup=False)


def _document(pipeline: str, entity: Mapping[str, str | int], row: OnlineRow | None, now: datetime) -> dict[str, Any]:
    document = {"pipeline": pipeline, "entity": entity, "status": _status(row, now)}
    if row is None:
        return document
    return document | {
        "event_time": row.event_time.isoformat(),
        "age_seconds": (now - row.event_time).total_seconds(),
        "ttl_seconds": None if row.ttl is None else row.ttl.total_seconds(),
        "features_place": row.features_place,
        "features": dict(row.features),
    }


def _status(row: OnlineRow | None, now: datetime) -> str:
    if row is None:
        return "missing"
    return "expired" if row.is_expired(now) else "served"


def _entity(given: Sequence[str], view: FeatureView) -> dict[str, str | int]:
    """
    Read the entity's columns from the command line.

    :raises BadConfigError: naming the column that is not the entity's, not given, or not of its type
    """
    types = entity_types(view)
    columns = ", ".join(types)
    entity: dict[str, str | int] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise BadConfigError(f"--entity {text!r} is not COLUMN=VALUE")
        if name not in types:
            near = get_close_matches(name, types, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the entity of {view.name} is {columns}"
            raise BadConfigError(f"--entity {text!r}: there is no column {name!r}; {hint}")
        try:
            entity[name] = types[name](value)
        except ValueError:
            raise BadConfigError(f"--entity {text!r}: {name} is a whole number") from None
    if missing := [name for name in types if name not in entity]:
        raise BadConfigError(f"the entity of {view.name} is {columns}; give --entity {missing[0]}=... too")
    return {name: entity[name] for name in types}


def _instant(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _duration(span: timedelta) -> str:
    hours, seconds = divmod(int(span.total_seconds()), 3600)
    return f"{hours // 24} days {hours % 24} h" if abs(hours) >= 96 else f"{hours} h {seconds // 60} min"


def _print_json(console: Console, document: object) -> None:
    console.print(json.dumps(document, indent=1), markup=False, highlight=False, soft_wrap=True)
