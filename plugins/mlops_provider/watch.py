"""``mlops metrics``: the curves of a run in Airflow, in a terminal; live if wanted."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import httpx
from rich.console import Console
from rich.table import Table

from mlops.contract.section import SpecError
from mlops_provider.handed_over import airflow_of, aside, find_stack, print_json
from mlops_provider.local.client import AirflowClient

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 40
"""Of a curve, in characters."""
_SILENCE_SECONDS: Final = 60.0
"""Of a stream, which says every 15 s that it is there, before it is opened again."""
_PATIENCE_SECONDS: Final = 600.0
"""With a server that does not answer."""
_PAUSE_SECONDS: Final = 2.0


def metrics(options: argparse.Namespace, console: Console) -> int:
    """
    Print the curves of a run's trainings.

    :return: exit code: 1 where the run was followed to its end, and failed
    """
    out = aside() if options.json else None
    find_stack(options)
    airflow, place = airflow_of(options), f"/runs/{quote(options.run_id, safe='@')}/metrics"
    state = _follow(airflow, place, options.metric, console) if options.follow else None
    curves = airflow.mlops("GET", place, params={"metric": options.metric}).json()["curves"]
    if out is not None:
        print_json(curves, out)
    elif curves:
        console.print(_table(curves))
    else:
        console.print(f"{options.run_id} has no metrics yet: mlops logs shows what it does")
    return int(state == "failed")


def _table(curves: Sequence[dict[str, Any]]) -> Table:
    several = len({curve["run"] for curve in curves}) > 1
    table = Table(*(["training"] if several else []), "metric")
    for name in ("steps", "first", "lowest", "highest", "last"):
        table.add_column(name, justify="right")
    table.add_column("curve", no_wrap=True)
    for curve in curves:
        values = [value for value in curve["values"] if value is not None]
        if not values:
            continue
        cells = map(_number, (values[0], min(values), max(values), values[-1]))
        training = [curve["name"]] if several else []
        table.add_row(*training, curve["metric"], str(len(curve["steps"])), *cells, sparkline(values))
    return table


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.5g}"


def sparkline(values: Sequence[float]) -> str:
    """A curve of at most 40 blocks: each the mean of as many values, from the lowest to the highest."""
    count = min(len(values), _WIDTH)
    parts = [values[len(values) * at // count : len(values) * (at + 1) // count] for at in range(count)]
    means = [sum(part) / len(part) for part in parts]
    low, span = min(means), max(means) - min(means)
    return "".join(_BLOCKS[int((mean - low) / span * (len(_BLOCKS) - 1) + 0.5) if span else 0] for mean in means)


def _follow(airflow: AirflowClient, place: str, wanted: Sequence[str], console: Console) -> str:
    """Print the values as they come, of these metrics or of all; the run's last state."""
    shown = _Shown(wanted, console)
    headers: dict[str, str] = {}
    heard = time.monotonic()
    while True:
        try:
            with airflow.stream(f"{place}/stream", headers, _SILENCE_SECONDS) as lines:
                for event in events(lines):
                    heard = time.monotonic()
                    if event.kind == "end":
                        return str(event.data["state"])
                    if event.kind == "problem":
                        raise SpecError(event.data["detail"])
                    shown.add(event.data)
                    if event.id is not None:
                        headers["Last-Event-ID"] = event.id
                        shown.tell()
            heard = time.monotonic()  # a stream ends after some seconds, so that a server can stop
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            is_away = not isinstance(error, httpx.HTTPStatusError) or error.response.is_server_error
            if not is_away or time.monotonic() > heard + _PATIENCE_SECONDS:
                raise
            time.sleep(_PAUSE_SECONDS)
        shown.forget()  # what came after the last id comes again


class _Shown:
    """Prints values by training and step."""

    def __init__(self, wanted: Sequence[str], console: Console) -> None:
        self._wanted, self._console = wanted, console
        self._waiting: dict[tuple[str, str, int], list[str]] = {}
        self._trainings: set[str] = set()

    def add(self, value: Mapping[str, Any]) -> None:
        self._trainings.add(value["run"])
        if not self._wanted or value["metric"] in self._wanted:
            told = self._waiting.setdefault((value["run"], value["name"], value["step"]), [])
            told.append(f"{value['metric']} {_number(value['value'])}")

    def tell(self) -> None:
        for (_, name, step), told in self._waiting.items():
            training = f"{name}, " if len(self._trainings) > 1 else ""
            self._console.print(f"{training}step {step}: {', '.join(told)}", markup=False, soft_wrap=True)
        self.forget()

    def forget(self) -> None:
        self._waiting.clear()


class Event(NamedTuple):
    kind: str
    data: Any
    id: str | None


def events(lines: Iterable[str]) -> Iterator[Event]:
    """Read server-sent events (HTML Living Standard, 9.2.6), whose data is JSON in one line."""
    kind, data, event_id = "message", None, None
    for line in lines:
        name, _, text = line.partition(":")
        match name:
            case "" if not line and data is not None:
                yield Event(kind, json.loads(data), event_id)
                kind, data, event_id = "message", None, None
            case "event":
                kind = text.removeprefix(" ")
            case "data":
                data = text.removeprefix(" ")
            case "id":
                event_id = text.removeprefix(" ")
