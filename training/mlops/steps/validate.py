"""
Validate: check the snapshot against all that is expected of it; stop the pipeline, with a report, if it does not fit.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from datetime import datetime, timedelta

from mlops.contract.grain import Periods, counted
from mlops.contract.refs import DatasetRef, ValidationRef
from mlops.contract.sections.validate import Validate
from mlops.contract.step import BadConfigError, BadDataError, RunIdentity
from mlops.data.snapshots.snapshot import Snapshot
from mlops.steps import StepContext
from mlops.validation.baselines import find_references
from mlops.validation.data_report import Subject, render
from mlops.validation.examination import Examined, ValidationResult, examine
from mlops.validation.first_schema import PROPOSAL, Described, first_schema, proposal_in_force, takeover
from mlops.validation.rows import Rows
from mlops.validation.schema import Schema, proposed_schema, read_schema
from mlops.validation.serving_skew import read_serving_log
from mlops.validation.window_periods import WindowPeriods

logger = logging.getLogger("mlops")


def run(context: StepContext) -> ValidationRef:
    """
    Publish ``report.html`` and ``statistics.pb``, whatever the verdict. Where there is no schema yet, one is proposed,
    and published too; it is in force until there is a file.

    :raises BadDataError: with a line per anomaly, where the data does not fit
    :raises BadConfigError: where the schema cannot be read, or was there before and is gone
    """
    config = context.section(Validate)
    dataset = context.input.ref
    assert isinstance(dataset, DatasetRef), "the operator's wiring was checked when the DAG was parsed"
    snapshot = Snapshot.open(context.store, dataset)
    rows = Rows.of(snapshot, context.scratch)
    schema = _schema(context, config, rows)
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
        takeover=takeover(context.run.pipeline, config.schema_path) if schema.proposal is not None else None,
        run=context.run,
    )
    report = context.publish("report.html", render(verdict, subject, config.volume).encode())
    statistics = context.publish("statistics.pb", verdict.statistics.SerializeToString(deterministic=True))
    artifacts = {"report": report, "statistics": statistics}
    if schema.proposal is not None:
        artifacts[PROPOSAL] = context.publish("schema.pbtxt", schema.proposal)
    _log_unchecked(verdict)
    if not verdict.passed:
        lines = [anomaly.line for anomaly in verdict.anomalies]
        raise BadDataError(
            f"the data of {verdict.periods[-1]} does not fit; nothing was trained:\n"
            + "".join(f"- {line}\n" for line in lines)
            + (f"{_of_proposal(subject)}\n" if subject.takeover else "")
            + f"Report: {report.key}",
            anomalies=[asdict(anomaly) for anomaly in verdict.anomalies],
            report=report.key,
            report_sha256=report.sha256,
            report_num_bytes=report.num_bytes,
        )
    number = counted(len(verdict.periods), snapshot.manifest.grain)
    logger.info("%d rows of %s passed %d checks", rows.total, number, verdict.num_checks)
    if subject.takeover:
        logger.warning("%s", _of_proposal(subject))
    return ValidationRef(
        place=context.place,
        artifacts=artifacts,
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


def _schema(context: StepContext, config: Validate, rows: Rows) -> Schema:
    """Return the schema in git; where there is none, the one that earlier intervals were held against; or a new one."""
    path = context.deployment.home / config.schema_path
    try:
        return read_schema(path, config.schema_path)
    except FileNotFoundError:
        pass
    if others := sorted(other.name for other in path.parent.glob(f"*{path.suffix}")):
        raise BadConfigError(
            f"there is no schema {config.schema_path}, but {', '.join(others)} in that folder: correct "
            "validate.schema_path, or the file's name"
        )
    proposal_in_force(context.store, context.run.pipeline, config.schema_path)  # refuses where there was a file
    end = datetime.fromisoformat(context.run.interval_end)
    earlier = proposal_in_force(context.store, context.run.pipeline, config.schema_path, before=end)
    if earlier is not None:
        return earlier
    if not rows.total:
        raise BadDataError(
            f"there is no schema {config.schema_path}, and the snapshot has no rows to propose one from: "
            "check the ingest's sources and data interval"
        )
    return proposed_schema(first_schema(Described.of(rows)).encode(), config.schema_path)


def _of_proposal(subject: Subject) -> str:
    return (
        f"There is no {subject.schema_path}: what is expected of the columns was proposed from the first data, and "
        f"nobody has decided on it. Take it over, review it (what is to be decided stands in it) and commit it:\n"
        f"  {subject.takeover}\n"
        "where LABEL is the column to predict. Until then the proposal stays in force"
    )
