"""From sources to the one table of a snapshot: the user's transform, and the window of calendar days."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import cast
from zoneinfo import ZoneInfo

import polars as pl
from polars.exceptions import ColumnNotFoundError, PolarsError

from mlops_provider.step import BadConfigError, BadDataError
from training.code import load_attribute
from training.data.sources import Source

Transform = Callable[[dict[str, pl.LazyFrame]], pl.LazyFrame]


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


def transform_sources(sources: Mapping[str, Source], transform: str | None, home: Path) -> pl.LazyFrame:
    """
    Make one table of the sources.

    :param transform: import path of the user's function; None where there is a single source
    :param home: folder that holds ``include/``

    :raises BadConfigError: where the transform is missing, does not import, or returns no LazyFrame
    """
    if transform is None:
        if len(sources) > 1:
            raise BadConfigError(
                f"ingest has {len(sources)} sources ({', '.join(sources)}) and no transform to make one table of them; "
                "set ingest.transform"
            )
        return next(iter(sources.values())).rows
    function = load_attribute(transform, home)
    if not callable(function):
        raise BadConfigError(f"ingest.transform {transform!r} is a {type(function).__name__}, not a function")
    with _explained(transform, sources):
        result = cast(Transform, function)({name: source.rows for name, source in sources.items()})
    if not isinstance(result, pl.LazyFrame):
        raise BadConfigError(
            f"ingest.transform {transform!r} returned a {type(result).__name__}; return a polars.LazyFrame"
        )
    return result


def rows_in_window(
    table: pl.LazyFrame, event_time: str, window: Window, *, sources: Mapping[str, Source], transform: str | None
) -> pl.DataFrame:
    """
    Run the transform and keep the window's rows.

    :param event_time: column with the instant by which a row belongs to a day

    :raises BadDataError: where a column is missing, or there are no rows for the last day
    """
    with _explained(transform, sources):
        schema = table.collect_schema()
    if event_time not in schema:
        raise BadDataError(
            f"the table has no column {event_time!r}, which ingest.event_time names; it has {', '.join(schema)}"
        )
    dtype = schema[event_time]
    if not isinstance(dtype, pl.Datetime) or dtype.time_zone is None:
        raise BadDataError(
            f"ingest.event_time {event_time!r} is {dtype}, not an instant; make it a datetime with a time zone, "
            "or name it as event_time of its source, which parses ISO 8601"
        )
    instant = pl.col(event_time)
    with _explained(transform, sources):
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
def _explained(transform: str | None, sources: Mapping[str, Source]) -> Iterator[None]:
    """Say what a failing transform asked for, and what there is."""
    try:
        yield
    except ColumnNotFoundError as error:
        missing = str(error).split("\n", 1)[0]
        columns = "; ".join(f"{name} has {', '.join(source.columns)}" for name, source in sources.items())
        raise BadDataError(
            f"ingest.transform {transform!r} asks for a missing column: {missing}. Of the sources, {columns}"
        ) from error
    except PolarsError as error:
        raise BadDataError(f"ingest.transform {transform!r} does not fit the data: {error}") from error
    except KeyError as error:
        raise BadConfigError(
            f"ingest.transform {transform!r} asks for {error}; the sources are {', '.join(sources)}"
        ) from error
