"""Ingest: read the sources as they were known at the end of the interval, transform, store a snapshot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

import polars as pl
from polars.exceptions import ColumnNotFoundError, PolarsError

from mlops_provider.refs import DatasetRef
from mlops_provider.step import BadConfigError, BadDataError
from training.code import load_attribute
from training.data.snapshots import write_snapshot
from training.data.sources import Source, SourceConfig, read_source
from training.steps import StepContext

logger = logging.getLogger(__name__)

Transform = Callable[[dict[str, pl.LazyFrame]], pl.LazyFrame]


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestConfig:
    """The section ``ingest`` of the pipeline."""

    sources: Mapping[str, Mapping[str, Any]]
    transform: str | None
    event_time: str
    window_days: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The calendar days that the snapshot holds."""

    start: datetime
    """First instant, UTC."""
    end: datetime
    """As-of time, UTC; not part of the window."""
    last_day: date
    timezone: str

    @classmethod
    def before(cls, end: datetime, days: int, timezone: str) -> Window:
        """The last ``days`` calendar days of the zone before an instant; a day begun counts as one."""
        zone = ZoneInfo(timezone)
        last_day = (end - timedelta(microseconds=1)).astimezone(zone).date()
        first_day = last_day - timedelta(days=days - 1)
        start = datetime.combine(first_day, time(), zone).astimezone(ZoneInfo("UTC"))
        return cls(start=start, end=end.astimezone(ZoneInfo("UTC")), last_day=last_day, timezone=timezone)


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
    transformed = transform_sources(context, config, sources)
    table = rows_in_window(transformed, config, window, sources)
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


def transform_sources(context: StepContext, config: IngestConfig, sources: Mapping[str, Source]) -> pl.LazyFrame:
    """
    Make one table of the sources.

    :raises BadConfigError: where the transform is missing, does not import, or returns no LazyFrame
    """
    if config.transform is None:
        if len(sources) > 1:
            raise BadConfigError(
                f"ingest has {len(sources)} sources ({', '.join(sources)}) and no transform to make one table of them; "
                "set ingest.transform"
            )
        return next(iter(sources.values())).rows
    transform = load_attribute(config.transform, context.deployment.home)
    if not callable(transform):
        raise BadConfigError(f"ingest.transform {config.transform!r} is a {type(transform).__name__}, not a function")
    with explained(config, sources):
        result = cast(Transform, transform)({name: source.rows for name, source in sources.items()})
    if not isinstance(result, pl.LazyFrame):
        raise BadConfigError(
            f"ingest.transform {config.transform!r} returned a {type(result).__name__}; return a polars.LazyFrame"
        )
    return result


def rows_in_window(
    table: pl.LazyFrame, config: IngestConfig, window: Window, sources: Mapping[str, Source]
) -> pl.DataFrame:
    """
    Run the transform and keep the window's rows.

    :raises BadDataError: where a column is missing, or there are no rows for the last day
    """
    with explained(config, sources):
        schema = table.collect_schema()
    if config.event_time not in schema:
        raise BadDataError(
            f"the table has no column {config.event_time!r}, which ingest.event_time names; it has {', '.join(schema)}"
        )
    dtype = schema[config.event_time]
    if not isinstance(dtype, pl.Datetime) or dtype.time_zone is None:
        raise BadDataError(
            f"ingest.event_time {config.event_time!r} is {dtype}, not an instant; make it a datetime with a time zone, "
            "or name it as event_time of its source, which parses ISO 8601"
        )
    instant = pl.col(config.event_time)
    with explained(config, sources):
        rows = table.filter(instant >= window.start, instant < window.end).collect()
    last = rows.select(instant.dt.convert_time_zone(window.timezone).dt.date().max()).item()
    if last is None:
        raise BadDataError(
            f"no rows from {window.start.isoformat()} to {window.end.isoformat()}: the window is empty; "
            "check that the sources reach this far, or the run's date"
        )
    if last != window.last_day:
        raise BadDataError(
            f"no rows for {window.last_day}, the last day of the interval (newest: {last}); "
            "the day's delivery is late or lost: run again when it is there"
        )
    return rows


@contextmanager
def explained(config: IngestConfig, sources: Mapping[str, Source]) -> Iterator[None]:
    """Say what a failing transform asked for, and what there is."""
    try:
        yield
    except ColumnNotFoundError as error:
        missing = str(error).split("\n", 1)[0]
        columns = "; ".join(f"{name} has {', '.join(source.columns)}" for name, source in sources.items())
        raise BadDataError(
            f"ingest.transform {config.transform!r} asks for a missing column: {missing}. Of the sources, {columns}"
        ) from error
    except PolarsError as error:
        raise BadDataError(f"ingest.transform {config.transform!r} does not fit the data: {error}") from error
    except KeyError as error:
        raise BadConfigError(
            f"ingest.transform {config.transform!r} asks for {error}; the sources are {', '.join(sources)}"
        ) from error
