from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mlops.contract.grain import Periods
from mlops.contract.sections.validate import Drift, Validate, Volume
from mlops.validation.baselines import Reference
from mlops.validation.examination import Examined, ValidationResult, examine
from mlops.validation.rows import Rows
from mlops.validation.schema import Schema, read_schema
from mlops.validation.window_periods import WindowPeriods

DAY_BEFORE = Volume(tolerance=0.2, against=1)
DAYS = ["2013-02-05", "2013-02-06", "2013-02-07", "2013-02-08", "2013-02-09"]

SCHEMA = """
feature { name: "departure" type: INT time_domain { integer_format: UNIX_SECONDS } presence { min_count: 1 } }
feature { name: "carrier" type: BYTES domain: "carrier" presence { min_fraction: 1 min_count: 1 } }
feature { name: "distance" type: INT int_domain { min: 1 max: 5000 } presence { min_fraction: 1 min_count: 1 } }
feature { name: "gust" type: FLOAT float_domain { min: 0 max: 200 disallow_nan: true } presence { min_fraction: 0.5 } }
feature { name: "cancelled" type: INT bool_domain { } }
string_domain { name: "carrier" value: "AA" value: "UA" }
"""


def day_frame(day: str, num_rows: int = 100) -> pl.DataFrame:
    start = datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC)
    return pl.DataFrame(
        {
            "departure": [start + timedelta(minutes=row) for row in range(num_rows)],
            "carrier": ["AA" if row % 3 else "UA" for row in range(num_rows)],
            "distance": [100 + row for row in range(num_rows)],
            "gust": [None if row % 4 == 0 else float(row) for row in range(num_rows)],
            "cancelled": [row % 10 == 0 for row in range(num_rows)],
        }
    )


@pytest.fixture
def days() -> list[str]:
    return list(DAYS)


@pytest.fixture
def frames() -> dict[str, pl.DataFrame]:
    """Five days of 100 rows that fit the schema."""
    return {day: day_frame(day) for day in DAYS}


@pytest.fixture
def schema_of(tmp_path: Path) -> Callable[[str], Schema]:
    """Read a schema from its text."""

    def read(text: str) -> Schema:
        path = tmp_path / "schema.pbtxt"
        path.write_text(text)
        return read_schema(path, "include/flights/schema.pbtxt")

    return read


@pytest.fixture
def schema_text() -> str:
    return SCHEMA


@pytest.fixture
def schema(schema_of: Callable[[str], Schema], schema_text: str) -> Schema:
    return schema_of(schema_text)


def rows_of(frames: Mapping[str, pl.DataFrame]) -> Rows:
    """What the step reads from the snapshot of these days."""
    frames = {day: frames[day] for day in sorted(frames) if frames[day].height}
    return Rows(
        whole=pl.concat(frame.lazy() for frame in frames.values()) if frames else pl.LazyFrame(),
        num_rows={day: frame.height for day, frame in frames.items()},
        event_time="departure",
        kind=Periods("day", "UTC"),
    )


def checks(**changes: Any) -> Validate:
    """The settings of a pipeline that names none but these."""
    settings = {"schema_path": "include/flights/schema.pbtxt", "volume": DAY_BEFORE, "drift": Drift()}
    return Validate.model_validate({**settings, **changes})


@pytest.fixture
def examined() -> Callable[..., ValidationResult]:
    """Hold days against a schema, with such settings and references."""

    def examined(
        frames: Mapping[str, pl.DataFrame],
        days: Sequence[str],
        schema: Schema,
        *,
        references: Sequence[Reference] = (),
        serving: Rows | None = None,
        **changes: Any,
    ) -> ValidationResult:
        data = Examined(
            rows=rows_of(frames),
            periods=WindowPeriods(grain="day", all=days, expected=days, looked_at=days),
            interval_start=days[-1],
            interval_end="2013-02-10T00:00:00+00:00",
            references=references,
            serving=serving,
            notes=(),
        )
        return examine(data, schema, checks(**changes))

    return examined
