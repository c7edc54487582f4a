"""``mlops metrics``: the curves of a run in Airflow, in a terminal; live if wanted."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from mlops.client import Client, Curve, Value
from mlops_provider.handed_over import aside, client_of, find_stack, print_json

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 40
"""Of a curve, in characters."""


def metrics(options: argparse.Namespace, console: Console) -> int:
    """
    Print the curves of a run's trainings.

    :return: exit code: 1 where the run was followed to its end, and failed
    """
    out = aside() if options.json else None
    find_stack(options)
    with client_of(options) as client:
        state = _follow(client, options.run_id, options.metric, console) if options.follow else None
        curves = client.curves(options.run_id, metrics=options.metric)
    if out is not None:
        print_json([each.model_dump() for each in curves], out)
    elif curves:
        console.print(_table(curves))
    else:
        console.print(f"{options.run_id} has logged no metrics so far: mlops logs shows what it does")
    return int(state == "failed")


def _table(curves: Sequence[Curve]) -> Table:
    several = len({curve.run for curve in curves}) > 1
    table = Table(*(["training"] if several else []), "metric")
    for name in ("steps", "first", "lowest", "highest", "last"):
        table.add_column(name, justify="right")
    table.add_column("curve", no_wrap=True)
    for curve in curves:
        values = [value for value in curve.values if value is not None]
        if not values:
            continue
        cells = map(_number, (values[0], min(values), max(values), values[-1]))
        training = [curve.name] if several else []
        table.add_row(*training, curve.metric, str(len(curve.steps)), *cells, sparkline(values))
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


def _follow(client: Client, run_id: str, wanted: Sequence[str], console: Console) -> str:
    """Print the values as they come, of these metrics or of all; the run's last state."""
    trainings: set[str] = set()
    for values in client.watch(run_id):
        trainings |= {value.run for value in values}
        for line in _lines(values, wanted, has_several=len(trainings) > 1):
            console.print(line, markup=False, soft_wrap=True)
    return client.run(run_id).state


def _lines(values: Sequence[Value], wanted: Sequence[str], has_several: bool) -> Iterator[str]:
    """A line for each training and step."""
    told: dict[tuple[str, str, int], list[str]] = {}
    for value in values:
        if not wanted or value.metric in wanted:
            said = f"{value.metric} {_number(value.value)}"
            told.setdefault((value.run, value.name, value.step), []).append(said)
    for (_, name, step), each in told.items():
        yield f"{f'{name}, ' if has_several else ''}step {step}: {', '.join(each)}"
