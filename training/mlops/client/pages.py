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
from mlops.contract.durations import duration
from mlops.contract.rest import Curve, Run, RunSummary

_INK: Final = "#010203"
"""Of a figure; it becomes the page's own."""
_COLOURS: Final = ("#1f77b4", "#d95f02", "#2ca02c", "#9467bd", "#c2185b", "#17a2b8", "#8c564b", "#7f7f7f")
_MOST_NAMED: Final = len(_COLOURS)
"""Trainings in a legend."""


def of_summary(run: RunSummary) -> str:
    """Return what was asked for, and how it stands."""
    return _part("summary", run)


def of_started(run: rest.StartedRun) -> str:
    """Return the same, and what it waits for."""
    waits = "" if run.waits_for is None else _part("facts", [("waits for", run.waits_for)])
    return of_summary(run) + waits


def of_run(run: Run) -> str:
    """Return a run, and what has come out of it so far."""
    return _part("whole", run)


def of_runs(runs: Sequence[RunSummary]) -> str:
    """Return a table with a row for each."""
    return _part("several", runs)


def of_study(study: rest.Study) -> str:
    """Return how a search stands, and the best settings where it has ended."""
    best = [[name, _said(value)] for name, value in (study.best_parameters or {}).items()]
    facts = [
        ("state", study.state),
        ("trials", ", ".join(f"{number} {state}" for state, number in study.trials.items() if number)),
        ("best", None if study.best_value is None else f"trial {study.best_trial}, {_number(study.best_value)}"),
        ("failure", study.failure),
        ("run", study.airflow),
    ]
    return _part("thing", study.pipeline, study.id, facts, [(["setting", "of the best trial"], best)] if best else [])


def of_verdict(verdict: rest.Verdict) -> str:
    """Return what happened, and the rest of the verdict."""
    facts = [
        (verdict.standing, verdict.happened),
        ("production", verdict.production),
        ("since the last good night", None if verdict.changes is None else "; ".join(verdict.changes)),
        ("next", verdict.action),
    ]
    pipeline, _, run = verdict.run.partition("@")
    return _part("thing", pipeline, run, facts, [])


def of_trials(trials: Sequence[rest.Trial]) -> str:
    """Return a table with a row for each, and a column for each setting that was searched."""
    searched = list(dict.fromkeys(name for trial in trials for name in trial.parameters))
    rows = [
        [str(each.number), each.state, _number(each.value), *(_said(each.parameters.get(name)) for name in searched)]
        for each in trials
    ]
    return _part("rows", ["trial", "state", "value", *searched], rows)


def of_table(items: Sequence[BaseModel], columns: Sequence[str]) -> str:
    """Return a table with these fields of each."""
    head = [column.replace("_", " ") for column in columns]
    return _part("rows", head, [[_said(getattr(item, column)) for column in columns] for item in items])


def of_snapshot(snapshot: rest.Snapshot) -> str:
    """Return a snapshot's facts, splits and columns; its periods by their first and last."""
    periods = [each.name for each in snapshot.periods]
    facts = [
        ("interval", f"{_said(snapshot.interval_start)} to {_said(snapshot.interval_end)}"),
        ("rows", _said(snapshot.num_rows)),
        ("bytes", _said(snapshot.num_bytes)),
        ("place", snapshot.place),
        ("made by", snapshot.creator.get("run_id")),
        ("periods", f"{len(periods)}, {periods[0]} to {periods[-1]}" if periods else ""),
        ("deprecated", _said(snapshot.deprecated)),
    ]
    splits = [[name, _said(split.num_rows)] for name, split in snapshot.splits.items()]
    tables = [(["split", "rows"], splits), (["column", "type"], list(snapshot.columns.items()))]
    return _part("thing", snapshot.name, snapshot.version, facts, tables)


def of_difference(difference: rest.SnapshotDifference) -> str:
    """Return the columns and periods in which two snapshots differ."""
    columns = [
        *([name, "", kind] for name, kind in difference.columns_added.items()),
        *([name, kind, ""] for name, kind in difference.columns_removed.items()),
        *([name, *kinds] for name, kinds in difference.columns_retyped.items()),
    ]
    periods = [[each.name, _said(each.rows_before), _said(each.rows_after)] for each in difference.periods]
    tables = [(["column", "before", "after"], columns), (["period", "rows before", "rows after"], periods)]
    facts = [] if columns or periods else [("result", "no differences")]
    return _part("thing", f"{difference.before[:12]} to {difference.after[:12]}", "", facts, tables)


def of_version_difference(difference: rest.TrainingDifference) -> str:
    """Return in what two versions of a model differ, and what of them is equal."""
    facts = [(part.name, f"equal: {part.said}") for part in difference.parts if part.is_equal]
    found = [[part.name, each.what, each.before, each.after] for part in difference.parts for each in part.differences]
    tables = [(["part", "what", f"version {difference.before}", f"version {difference.after}"], found)]
    tables += [
        (["files of the recipe"], [[line] for line in part.patch.splitlines()])
        for part in difference.parts
        if part.patch
    ]
    return _part("thing", f"{difference.before} to {difference.after}", "", facts, tables)


def of_version(version: rest.ModelVersion) -> str:
    """Return a version's metrics, and what each step has made on the way to it."""
    facts = [
        ("version", ", ".join(filter(None, [version.version, version.semantic_version]))),
        ("stage", version.stage),
        ("registered", _said(version.registered_at)),
        ("why", version.reason),
        ("commit", version.git_commit),
    ]
    metrics = [[name, _number(value)] for name, value in results.of_candidate(version.metrics or {}).items()]
    lineage = [[link["kind"], link["place"]] for link in version.lineage]
    return _part(
        "thing", version.name, "", facts, [(["metric", "this model"], metrics), (["what led to it", "place"], lineage)]
    )


def of_stage(answer: rest.StageAnswer) -> str:
    """Return where a version is, what it waits for, and who answers."""
    facts = [
        ("stage", answer.stage),
        ("wanted", None if answer.is_done else answer.wanted),
        ("waits for", answer.waits_for),
        ("asked at", answer.question),
        ("approvers", ", ".join(answer.approvers)),
        ("run", answer.airflow),
    ]
    return _part("thing", answer.model, answer.version, facts, [])


def of_curves(curves: Sequence[Curve]) -> str:
    """Return a figure for each metric that has a curve, with a line for each training, and a table of the others."""
    labels = _labels(curves)
    by_metric: dict[str, list[Curve]] = {}
    for curve in sorted(curves, key=lambda curve: _rank(curve.metric)):
        by_metric.setdefault(curve.metric, []).append(curve)
    drawn = {metric: each for metric, each in by_metric.items() if any(len(curve.steps) > 1 for curve in each)}
    figures = "".join(_figure(metric, each, labels) for metric, each in drawn.items())
    once = []
    for metric in by_metric.keys() - drawn.keys():
        last = {curve.run: curve.values[-1] for curve in by_metric[metric] if curve.values}
        once.append([metric, *(_number(last.get(run)) for run in labels)])
    once.sort(key=lambda line: _rank(line[0]))
    table = _part("rows", ["metric", *labels.values()], once) if once else ""
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
    _, begin, drawing = written.getvalue().partition("<svg")
    return (begin + drawing).replace(_INK, "currentColor")


def _part(name: str, *shown: object) -> str:
    # A plain text: what is put beside markup would be escaped.
    return str(getattr(_template().module, name)(*shown))


@cache
def _template() -> Any:
    import jinja2  # the command line draws no pages

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"asked": _asked, "duration": _duration, "measured": _measured, "spreads": _spreads}
    environment.globals["verdict"] = results.verdict
    return environment.get_template("cells.html.j2")


def _asked(run: RunSummary) -> list[tuple[str, str]]:
    """Return what a run was started with, by name."""
    return [(name, _said(value)) for name, value in run.asked.items()]


def _measured(training: results.TrainingResult) -> tuple[list[str], list[list[str]]]:
    """Return a table's head and lines: the evaluation's metrics beside the champion's, or else the validation's."""
    if training.metrics is None:
        head = ["validation", f"best epoch {training.epoch}"]
        return head, [[name, _number(value)] for name, value in training.validation.items()]
    lines = [[name, _number(value)] for name, value in results.of_candidate(training.metrics).items()]
    if training.champion is None:
        return ["metric", "this model"], lines
    for line in lines:
        line.append(_number(training.metrics.get(results.CHAMPION + line[0])))
    return ["metric", "this model", f"version {training.champion}, the champion"], lines


def _spreads(result: results.ExperimentResult) -> tuple[list[str], list[list[str]]]:
    lines = [[name, _number(each.mean), _number(each.standard_deviation)] for name, each in result.over_seeds.items()]
    return ["metric", "mean", "standard deviation"], lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _said(value: Any) -> str:
    match value:
        case None:
            return ""
        case dict():
            return ", ".join(f"{name} = {each}" for name, each in value.items())
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}".removesuffix(":00")
        case int() if not isinstance(value, bool):
            return f"{value:,}"
        case float():
            return _number(value)
        case rest.Deprecation():
            return value.reason
        case _:
            return str(value)


def _duration(run: RunSummary) -> str:
    if run.started_at is None:
        return ""
    return duration(((run.ended_at or datetime.now(UTC)) - run.started_at).total_seconds())
