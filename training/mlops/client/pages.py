"""Runs and curves as HTML, for the output of a notebook's cell: in its own colours, light or dark."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from mlops.contract import rest, results
from mlops.contract.rest import Curve, Run, RunSummary

_INK: Final = "#010203"
"""Of a figure; it becomes the page's own."""
_COLOURS: Final = ("#1f77b4", "#d95f02", "#2ca02c", "#9467bd", "#c2185b", "#17a2b8", "#8c564b", "#7f7f7f")
_MOST_NAMED: Final = len(_COLOURS)
"""Trainings in a legend."""


def of_summary(run: RunSummary) -> str:
    """Return what was asked for, and how it stands."""
    return _part("summary", run)


def of_run(run: Run) -> str:
    """Return a run, and what has come out of it so far."""
    return _part("whole", run)


def of_runs(runs: Sequence[RunSummary]) -> str:
    """Return a table with a row for each."""
    return _part("several", runs)


def of_table(rows: Sequence[BaseModel], columns: Sequence[str]) -> str:
    """Return a table with these fields of each."""
    return _part("table", rows, columns)


def of_snapshot(snapshot: rest.Snapshot) -> str:
    """Return a snapshot's facts, columns and splits; its periods by their first and last."""
    return _part("snapshot", snapshot)


def of_difference(difference: rest.SnapshotDifference) -> str:
    """Return the columns and periods in which two snapshots differ."""
    return _part("difference", difference)


def of_version(version: rest.ModelVersion) -> str:
    """Return a version's metrics, and what each step has made on the way to it."""
    return _part("version", version)


def of_curves(curves: Sequence[Curve]) -> str:
    """Return a figure for each metric that has a curve, with a line for each training, and a table of the others."""
    labels = _labels(curves)
    by_metric: dict[str, list[Curve]] = {}
    for curve in sorted(curves, key=lambda curve: _rank(curve.metric)):
        by_metric.setdefault(curve.metric, []).append(curve)
    drawn = {metric: each for metric, each in by_metric.items() if any(len(curve.steps) > 1 for curve in each)}
    figures = "".join(_figure(metric, each, labels) for metric, each in drawn.items())
    values = {
        metric: {curve.run: curve.values[-1] for curve in each if curve.values}
        for metric, each in by_metric.items()
        if metric not in drawn
    }
    table = _part("values", values, labels) if values else ""
    return f"<div style='display:flex;flex-wrap:wrap;gap:12px'>{figures}</div>{table}"


def _rank(metric: str) -> tuple[bool, bool, bool, str]:
    """What a training is judged by comes first, what is measured of the machine last."""
    return "/" in metric, not metric.startswith("validation"), "loss" not in metric, metric


def _labels(curves: Sequence[Curve]) -> dict[str, str]:
    """Names of the trainings by their runs; those of one name with the begin of the run's id."""
    names = {curve.run: curve.name for curve in curves}
    counts = Counter(names.values())
    return {run: name if counts[name] == 1 else f"{name} {run[:6]}" for run, name in names.items()}


def _figure(metric: str, curves: Sequence[Curve], labels: Mapping[str, str]) -> str:
    # Airflow's runtime has no matplotlib, and draws no curves.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(4.4, 2.7), layout="constrained")
        axes = figure.subplots()
        for curve in curves:
            # matplotlib fails near the ends of what a number may be.
            values = [float("nan") if value is None else max(min(value, 1e300), -1e300) for value in curve.values]
            # One between two that were not finite would be seen by nobody.
            mark = "." if len(values) == 1 or None in curve.values else None
            colour = _COLOURS[list(labels).index(curve.run) % len(_COLOURS)]
            axes.plot(curve.steps, values, color=colour, lw=1.4, marker=mark, label=labels[curve.run])
        axes.set_title(metric, color=_INK, fontsize=10, parse_math=False)
        axes.set_xlabel("step", color=_INK, fontsize=9)
        axes.tick_params(colors=_INK, labelsize=8)
        for spine in axes.spines.values():
            spine.set_color(_INK)
        if 1 < len(curves) <= _MOST_NAMED:
            for text in axes.legend(fontsize=8, frameon=False, labelcolor=_INK).get_texts():
                text.set_parse_math(False)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    _, begin, rest = written.getvalue().partition("<svg")
    return (begin + rest).replace(_INK, "currentColor")


def _part(name: str, *shown: object) -> str:
    # A plain text: what is put beside markup would be escaped.
    return str(getattr(_template().module, name)(*shown))


@cache
def _template() -> Any:
    import jinja2  # the command line draws no pages

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"asked": _asked, "duration": _duration, "said": _said}
    environment.globals |= {"of_candidate": results.of_candidate, "verdict": results.verdict}
    return environment.get_template("cells.html.j2")


def _asked(run: RunSummary) -> list[tuple[str, str]]:
    """Return what a run was started with, by name."""
    return [(name, _said(value)) for name, value in run.asked.items()]


def _said(value: Any) -> str:
    match value:
        case None:
            return ""
        case dict():
            return ", ".join(f"{name} = {each}" for name, each in value.items())
        case datetime():
            return f"{value:%Y-%m-%d %H:%M}"
        case int() if not isinstance(value, bool):
            return f"{value:,}"
        case rest.Deprecation():
            return value.reason
        case _:
            return str(value)


def _duration(run: RunSummary) -> str:
    if run.started_at is None:
        return ""
    seconds = ((run.ended_at or datetime.now(UTC)) - run.started_at).total_seconds()
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
