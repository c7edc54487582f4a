"""Ingest: read the sources as they were known at the end of the interval, transform, store a snapshot."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mlops_provider.refs import DatasetRef
from training.data.snapshots import write_snapshot
from training.data.sources import SourceConfig, read_source
from training.data.transform import Window, rows_in_window, transform_sources
from training.steps import StepContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestConfig:
    """The section ``ingest`` of the pipeline."""

    sources: Mapping[str, Mapping[str, Any]]
    transform: str | None
    event_time: str
    window_days: int


def run(context: StepContext) -> DatasetRef:
    config = IngestConfig(**context.config)
    window = Window.before(datetime.fromisoformat(context.run.interval_end), config.window_days, context.run.timezone)
    sources = {
        name: read_source(
            name, SourceConfig(**source), home=context.deployment.home, scratch=context.scratch, as_of=window.end
        )
        for name, source in config.sources.items()
    }
    for name, source in sources.items():
        logger.info("source %s: %d rows known at %s", name, source.provenance["num_rows"], window.end.isoformat())
    transformed = transform_sources(sources, config.transform, context.deployment.home)
    table = rows_in_window(transformed, config.event_time, window, sources=sources, transform=config.transform)
    manifest = write_snapshot(
        context.store,
        table,
        name=context.run.pipeline,
        interval_start=window.start.isoformat(),
        interval_end=window.end.isoformat(),
        timezone=window.timezone,
        event_time=config.event_time,
        sources={name: source.provenance for name, source in sources.items()},
    )
    return DatasetRef(
        place=context.place,
        artifacts={"manifest": context.publish("manifest.json", manifest.to_json())},
        name=manifest.name,
        version=manifest.version,
        schema_hash=manifest.schema_hash,
        num_rows=manifest.num_rows,
        num_bytes=manifest.num_bytes,
        interval_start=manifest.interval_start,
        interval_end=manifest.interval_end,
    )
