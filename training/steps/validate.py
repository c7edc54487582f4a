"""Hold the snapshot against its schema; stop the pipeline, with a report, where it does not fit."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import polars as pl

from mlops_provider.refs import DatasetRef, ValidationRef
from mlops_provider.step import BadConfigError, BadDataError
from training.data.snapshots import Snapshot
from training.steps import StepContext
from training.validation.gate import WINDOW, examine
from training.validation.report import Subject, render
from training.validation.schema import propose_schema, read_schema, write_schema
from training.validation.statistics import dataset_statistics
from training.validation.volume import VolumeConfig, calendar_days

logger = logging.getLogger("training")


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidateConfig:
    """The section ``validate`` of a pipeline."""

    schema_path: str
    """Relative to the project folder."""
    volume: VolumeConfig | None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ValidateConfig:
        volume = config["volume"]
        return cls(schema_path=config["schema_path"], volume=VolumeConfig(**volume) if volume is not None else None)


def run(context: StepContext) -> ValidationRef:
    """
    Publish ``report.html`` and ``statistics.pb``, whatever the verdict.

    :raises BadDataError: with a line per anomaly, where the data does not fit
    :raises BadConfigError: where there is no schema yet; one is proposed
    """
    config = ValidateConfig.of(context.config)
    dataset = context.input.ref
    assert isinstance(dataset, DatasetRef), "the operator's wiring was checked when the DAG was parsed"
    snapshot = Snapshot.open(context.store, dataset)
    frames = {day: snapshot.read([day]) for day in snapshot.days}
    try:
        schema = read_schema(context.deployment.home / config.schema_path, config.schema_path)
    except FileNotFoundError:
        _propose(context, config, frames)
    manifest = snapshot.manifest
    days = calendar_days(manifest.interval_start, manifest.interval_end, manifest.timezone)
    verdict = examine(frames, days, schema, config.volume)
    subject = Subject(
        dataset=manifest.name,
        version=dataset.version,
        timezone=manifest.timezone,
        types=manifest.schema,
        schema_path=config.schema_path,
        schema_sha256=schema.sha256,
        run=context.run,
    )
    report = context.publish("report.html", render(verdict, subject, config.volume).encode())
    statistics = context.publish("statistics.pb", verdict.statistics.SerializeToString(deterministic=True))
    if not verdict.passed:
        lines = [anomaly.line for anomaly in verdict.anomalies]
        raise BadDataError(
            f"the data of {days[-1]} does not fit; nothing was trained:\n"
            + "".join(f"- {line}\n" for line in lines)
            + f"Report: {report.key}",
            anomalies=[asdict(anomaly) for anomaly in verdict.anomalies],
            report=report.key,
            report_sha256=report.sha256,
            report_num_bytes=report.num_bytes,
        )
    logger.info("%d rows of %d days passed %d checks", dataset.num_rows, len(days), verdict.num_checks)
    return ValidationRef(
        place=context.place,
        artifacts={"report": report, "statistics": statistics},
        schema_sha256=schema.sha256,
        num_checks=verdict.num_checks,
        parent=dataset,
    )


def _propose(context: StepContext, config: ValidateConfig, frames: Mapping[str, pl.DataFrame]) -> NoReturn:
    if not frames:
        raise BadDataError(
            f"there is no schema {config.schema_path}, and the snapshot has no rows to propose one from: "
            "check the ingest's sources and data interval"
        )
    frame = pl.concat(frames.values())
    text = write_schema(propose_schema(dataset_statistics(frame, WINDOW), frame))
    proposal = context.publish("schema.pbtxt", text.encode())
    raise BadConfigError(
        f"there is no schema {config.schema_path}. One was inferred from the snapshot's {frame.height} rows and lies "
        f"in the store {context.store.uri} at {proposal.key}. Review it (types, domains, ranges, min_fraction), save "
        f"it as {context.deployment.home / config.schema_path}, commit it, and run the pipeline again",
        schema=proposal.key,
        schema_sha256=proposal.sha256,
    )
