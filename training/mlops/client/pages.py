"""Runs and curves as HTML, for the output of a notebook's cell: in its own colours, light or dark."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

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


def of_curves(curves: Sequence[Curve]) -> str:
    """Return a figure for each metric, with a line for each training."""
    metrics = list(dict.fromkeys(curve.metric for curve in curves))
    figures = (_figure(metric, [curve for curve in curves if curve.metric == metric]) for metric in metrics)
    return f"<div style='display:flex;flex-wrap:wrap;gap:12px'>{''.join(figures)}</div>"


def _figure(metric: str, curves: Sequence[Curve]) -> str:
    # Airflow's runtime has no matplotlib, and draws no curves.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(4.4, 2.7), layout="constrained")
        axes = figure.subplots()
        for number, curve in enumerate(curves):
            values = [float("nan") if value is None else value for value in curve.values]
            mark = "o" if len(values) == 1 else None
            axes.plot(
                curve.steps, values, color=_COLOURS[number % len(_COLOURS)], lw=1.4, marker=mark, label=curve.name
            )
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
    environment.filters |= {"asked": _asked, "duration": _duration}
    return environment.get_template("cells.html.j2")


def _asked(run: RunSummary) -> list[tuple[str, str]]:
    """Return what a run was started with, by name."""
    return [(name, _said(value)) for name, value in run.asked.items()]


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {each}" for name, each in value.items())
    return str(value)


def _duration(run: RunSummary) -> str:
    if run.started_at is None:
        return ""
    seconds = ((run.ended_at or datetime.now(UTC)) - run.started_at).total_seconds()
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
