"""The verdict as one HTML page without any outside resource, to be read by someone who was woken by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import jinja2
from tensorflow_metadata.proto.v0 import statistics_pb2

from mlops_provider.step import RunIdentity
from training.validation.gate import Verdict
from training.validation.volume import VolumeConfig

_NUM_TOP_SHOWN: Final = 5
_LARGE: Final = 10_000
"""From here on a number is shown without decimals, its thousands apart; a year or a flight number is below."""
_HUGE: Final = 1e15
"""From here on it is shown as a power of ten."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What was examined, for the head of the report."""

    dataset: str
    version: str
    timezone: str
    types: Mapping[str, str]
    """Polars type by column, as in the snapshot's manifest."""
    schema_path: str
    schema_sha256: str
    run: RunIdentity


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart; ``height`` is its share of the highest one, in percent."""

    label: str
    value: str
    height: float
    marked: bool = False


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """A line of the table of columns."""

    name: str
    type: str
    missing: float
    """Share of rows without a value, in percent."""
    bars: list[Bar]
    """Histogram of a column of numbers; the most frequent values of a column of strings."""
    is_text: bool
    facts: list[tuple[str, str]]
    anomalous: bool


def render(verdict: Verdict, subject: Subject, volume: VolumeConfig | None) -> str:
    """
    The page. Equal verdicts give equal bytes: there is no clock in it.

    :param volume: how the newest day was compared; None where it was not
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # values come from the data
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    window = verdict.statistics.datasets[0] if verdict.statistics.datasets else None
    anomalous = {anomaly.column for anomaly in verdict.anomalies}
    return environment.get_template("report.html.j2").render(
        verdict=verdict,
        subject=subject,
        volume=volume,
        num_rows=sum(verdict.num_rows.values()),
        compared=volume.compared_day(verdict.days) if volume else None,
        days=day_bars(verdict),
        columns=[
            summarise(feature, subject.types, feature.path.step[0] in anomalous)
            for feature in (window.features if window else ())
        ],
    )


def day_bars(verdict: Verdict) -> list[Bar]:
    """Rows per day; the days that an anomaly about rows names are marked."""
    marked = {day for anomaly in verdict.anomalies if anomaly.column is None for day in anomaly.days}
    highest = max(verdict.num_rows.values(), default=0) or 1
    counts = {day: verdict.num_rows.get(day, 0) for day in verdict.days}
    return [Bar(day, f"{count:,}", 100 * count / highest, day in marked) for day, count in counts.items()]


def summarise(
    feature: statistics_pb2.FeatureNameStatistics, types: Mapping[str, str], anomalous: bool
) -> ColumnSummary:
    """What the report says about a column."""
    name = feature.path.step[0]
    is_text = feature.HasField("string_stats")
    stats = feature.string_stats if is_text else feature.num_stats
    num_rows = stats.common_stats.num_missing + stats.common_stats.num_non_missing
    dtype = types[name]
    if not stats.common_stats.num_non_missing:
        bars, facts = [], []
    elif is_text:
        bars = _value_bars(feature.string_stats, num_rows)
        facts = [("distinct", f"{feature.string_stats.unique:,}")]
    else:
        bars = _histogram_bars(feature.num_stats, dtype)
        facts = [
            (label, format_number(value, dtype))
            for label, value in (
                ("min", feature.num_stats.min), ("median", feature.num_stats.median), ("max", feature.num_stats.max),
            )
        ]  # fmt: skip
    return ColumnSummary(
        name=name,
        type=dtype.split("(")[0].lower(),
        missing=100 * stats.common_stats.num_missing / num_rows,
        bars=bars,
        is_text=is_text,
        facts=facts,
        anomalous=anomalous,
    )


def _value_bars(stats: statistics_pb2.StringStatistics, num_rows: int) -> list[Bar]:
    top = stats.top_values[:_NUM_TOP_SHOWN]
    highest = top[0].frequency
    return [
        Bar(value.value, f"{100 * value.frequency / num_rows:.1f}%", 100 * value.frequency / highest) for value in top
    ]


def _histogram_bars(stats: statistics_pb2.NumericStatistics, dtype: str) -> list[Bar]:
    buckets = stats.histograms[0].buckets
    highest = max((bucket.sample_count for bucket in buckets), default=1) or 1
    return [
        Bar(
            f"{format_number(bucket.low_value, dtype)} to {format_number(bucket.high_value, dtype)}",
            f"{bucket.sample_count:,.0f} rows",
            100 * bucket.sample_count / highest,
        )
        for bucket in buckets
    ]


def format_number(value: float, dtype: str) -> str:
    """
    A number for people; instants, which the statistics hold as seconds since 1970 UTC, as dates and times.

    :param dtype: the column's Polars type
    """
    if dtype.startswith("Date"):
        # fromtimestamp() fails beyond the C library's range; a broken source may well hold such a date.
        try:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value)
        except OverflowError:
            return f"{value:.0f} s"
        return str(moment.date()) if dtype == "Date" else moment.strftime("%Y-%m-%d %H:%M")
    if abs(value) < _HUGE and (value == int(value) or abs(value) >= _LARGE):
        return f"{value:,.0f}" if abs(value) >= _LARGE else f"{value:.0f}"
    return f"{value:.4g}"
