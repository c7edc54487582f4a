"""
Validate: check the snapshot against all that is expected of it; stop the pipeline, with a report, if it does not fit.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import NoReturn

from mlops.contract.grain import Periods, counted
from mlops.contract.refs import DatasetRef, ValidationRef
from mlops.contract.sections.validate import Validate
from mlops.contract.step import BadConfigError, BadDataError, RunIdentity
from mlops.data.snapshots.snapshot import Snapshot
from mlops.steps import StepContext
from mlops.validation.baselines import WINDOW, find_references
from mlops.validation.data_report import Subject, render
from mlops.validation.examination import Examined, ValidationResult, examine
from mlops.validation.proposal import propose_schema, write_schema
from mlops.validation.rows import Rows
from mlops.validation.schema import Schema, read_schema
from mlops.validation.serving_skew import read_serving_log
from mlops.validation.window_periods import WindowPeriods

logger = logging.getLogger("mlops")


def run(context: StepContext) -> ValidationRef:
    """
    Publish ``report.html`` and ``statistics.pb``, whatever the verdict.

    :raises BadDataError: with a line per anomaly, where the data does not fit
    :raises BadConfigError: where there is no schema yet; one is proposed
    """
    config = context.section(Validate)
    dataset = context.input.ref
    assert isinstance(dataset, DatasetRef), "the operator's wiring was checked when the DAG was parsed"
    snapshot = Snapshot.open(context.store, dataset)
    rows = Rows.of(snapshot, context.scratch)
    try:
        schema = read_schema(context.deployment.home / config.schema_path, config.schema_path)
    except FileNotFoundError:
        _propose(context, config, rows)
    data = _examined(context, config, snapshot, rows, schema)
    verdict = examine(data, schema, config)
    subject = Subject(
        dataset=snapshot.manifest.name,
        version=dataset.version,
        timezone=snapshot.manifest.timezone,
        grain=snapshot.manifest.grain,
        types=snapshot.manifest.schema,
        schema_path=config.schema_path,
        schema_sha256=schema.sha256,
        run=context.run,
    )
    report = context.publish("report.html", render(verdict, subject, config.volume).encode())
    statistics = context.publish("statistics.pb", verdict.statistics.SerializeToString(deterministic=True))
    _log_unchecked(verdict)
    if not verdict.passed:
        lines = [anomaly.line for anomaly in verdict.anomalies]
        raise BadDataError(
            f"the data of {verdict.periods[-1]} does not fit; nothing was trained:\n"
            + "".join(f"- {line}\n" for line in lines)
            + f"Report: {report.key}",
            anomalies=[asdict(anomaly) for anomaly in verdict.anomalies],
            report=report.key,
            report_sha256=report.sha256,
            report_num_bytes=report.num_bytes,
        )
    number = counted(len(verdict.periods), snapshot.manifest.grain)
    logger.info("%d rows of %s passed %d checks", rows.total, number, verdict.num_checks)
    return ValidationRef(
        place=context.place,
        artifacts={"report": report, "statistics": statistics},
        schema_sha256=schema.sha256,
        num_checks=verdict.num_checks,
        parent=dataset,
    )


def _examined(context: StepContext, config: Validate, snapshot: Snapshot, rows: Rows, schema: Schema) -> Examined:
    manifest = snapshot.manifest
    serving: Rows | None = None
    notes: list[str] = []
    if config.serving_log is not None and rows.total:
        serving, notes = read_serving_log(
            config.serving_log, manifest, rows, schema, home=context.deployment.home, scratch=context.scratch
        )
    return Examined(
        rows=rows,
        periods=WindowPeriods.of(manifest),
        interval_start=_first_period(context.run, Periods(manifest.grain, manifest.timezone)),
        interval_end=manifest.interval_end,
        references=find_references(context.store, context.run, context.input.baselines, manifest.grain),
        serving=serving,
        notes=notes,
    )


def _first_period(run: RunIdentity, periods: Periods) -> str:
    """Return the first period of the run's own data interval; the last one where it has no length."""
    start, end = (datetime.fromisoformat(each) for each in (run.interval_start, run.interval_end))
    return periods.name(periods.at(min(start, end - timedelta(microseconds=1))))


def _log_unchecked(verdict: ValidationResult) -> None:
    for comparison in verdict.comparisons:
        if not comparison.compared:
            logger.info("not compared with the %s: %s", comparison.reference, comparison.description)
    for note in verdict.notes:
        logger.info("%s", note)


def _propose(context: StepContext, config: Validate, rows: Rows) -> NoReturn:
    if not rows.total:
        raise BadDataError(
            f"there is no schema {config.schema_path}, and the snapshot has no rows to propose one from: "
            "check the ingest's sources and data interval"
        )
    window = f"{rows.periods[0]} to {rows.periods[-1]}, {rows.total:,} rows"
    text = write_schema(propose_schema(rows.statistics(WINDOW), rows.schema), window)
    proposal = context.publish("schema.pbtxt", text.encode())
    raise BadConfigError(
        f"there is no schema {config.schema_path}. One was inferred from the snapshot's {rows.total} rows and lies "
        f"in the store {context.store.uri} at {proposal.key}. Take it over by\n"
        f"  mlops schema propose {context.run.pipeline} --schema {config.schema_path} --label LABEL --write\n"
        "where LABEL is the column to predict; review it (types, domains, ranges, min_fraction), commit it, and run "
        "the pipeline again",
        schema=proposal.key,
        schema_sha256=proposal.sha256,
    )
