"""The charts of the report, as numbers ready for the page: every width and height is a percentage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from tensorflow_metadata.proto.v0 import statistics_pb2

from mlops.validation.anomalies import ColumnDistance, Distribution, ReferenceComparison
from mlops.validation.slice_checks import SliceSummary

NUM_TOP_SHOWN: Final = 5
MAX_PAIRS: Final = 20
NUM_DRAWN: Final = 10
"""
Number of columns of a comparison whose two distributions are drawn, those nearest to their thresholds; a page of 200
columns would take megabytes otherwise.
"""
_LARGE: Final = 10_000
"""Number from which on no decimals are shown, and thousands are separated; a year or a flight number is below it."""
_HUGE: Final = 1e15
"""Number from which on it is shown as a power of ten."""
_STANDARD: Final = statistics_pb2.Histogram.STANDARD


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart; ``height`` is its share of the highest one, in percent."""

    label: str
    value: str
    height: float
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """A bin of two distributions: its shares as text, and as bars of which the longest of all is 100."""

    label: str
    expected: str
    found: str
    expected_width: float
    found_width: float


@dataclass(frozen=True, slots=True)
class DistanceBar:
    """A column's distance from a reference, on a scale that ends at twice its threshold."""

    column: ColumnDistance
    width: float
    exceeded: bool
    drawn: bool
    """True if its two distributions are drawn, too."""


@dataclass(frozen=True, slots=True)
class SliceBar:
    """A slice; ``width`` is its share of the largest one's rows, in percent."""

    summary: SliceSummary
    width: float
    anomaly: int | None


def pairs(distribution: Distribution) -> list[Pair]:
    """Return two distributions bin by bin, in their order; if there are many bins, those that differ least as one."""
    bins = [
        row
        for row in zip(distribution.labels, distribution.expected, distribution.found, strict=True)
        if row[1] or row[2]
    ]
    if len(bins) > MAX_PAIRS:
        most = set(sorted(bins, key=lambda row: -abs(row[1] - row[2]))[: MAX_PAIRS - 1])
        rest = [row for row in bins if row not in most]
        others = (f"{len(rest)} others", sum(row[1] for row in rest), sum(row[2] for row in rest))
        bins = [*(row for row in bins if row in most), others]
    longest = max((max(expected, found) for _, expected, found in bins), default=0) or 1
    return [
        Pair(label, percent(expected), percent(found), 100 * expected / longest, 100 * found / longest)
        for label, expected, found in bins
    ]


def distance_bars(comparison: ReferenceComparison) -> list[DistanceBar]:
    """Return the bars of a comparison's columns, the farthest beyond (or nearest to) its threshold first."""

    def share(column: ColumnDistance) -> float:
        return column.distance / column.threshold if column.threshold else float(column.distance > 0)

    ordered = sorted(comparison.columns, key=lambda column: (-share(column), column.column))
    return [
        DistanceBar(column, 50 * min(share(column), 2), column.distance > column.threshold, place < NUM_DRAWN)
        for place, column in enumerate(ordered)
    ]


def slice_bars(slices: Sequence[SliceSummary], anomalies: Mapping[str | None, int]) -> dict[str, list[SliceBar]]:
    """
    Return the slices by column: those with anomalies first, then the largest.

    :param anomalies: number of the anomaly about a slice, by the slice's name
    """
    columns: dict[str, list[SliceSummary]] = {}
    for summary in slices:
        columns.setdefault(summary.column, []).append(summary)
    return {
        column: [
            SliceBar(summary, 100 * summary.num_rows / max(other.num_rows for other in found), number)
            for summary, number in sorted(
                ((summary, anomalies.get(summary.name)) for summary in found),
                key=lambda item: (item[1] is None, -item[0].num_rows, item[0].value),
            )
        ]
        for column, found in columns.items()
    }


def period_bars(num_rows: Mapping[str, int], periods: Sequence[str], marked: set[str]) -> list[Bar]:
    """
    Return the bars of rows per period.

    :param periods: the periods, oldest first; those without rows are not in ``num_rows``
    """
    highest = max(num_rows.values(), default=0) or 1
    counts = {period: num_rows.get(period, 0) for period in periods}
    return [Bar(period, f"{count:,}", 100 * count / highest, period in marked) for period, count in counts.items()]


def value_bars(stats: statistics_pb2.StringStatistics, num_rows: int) -> list[Bar]:
    """Return the bars of the most frequent values."""
    top = stats.top_values[:NUM_TOP_SHOWN]
    return [
        Bar(value.value, percent(value.frequency / num_rows), 100 * value.frequency / top[0].frequency) for value in top
    ]


def histogram_bars(stats: statistics_pb2.NumericStatistics, dtype: str) -> list[Bar]:
    """Return the bars of the histogram of equal widths."""
    buckets = next((h.buckets for h in stats.histograms if h.type == _STANDARD), ())
    highest = max((bucket.sample_count for bucket in buckets), default=1) or 1
    return [
        Bar(
            f"{format_number(bucket.low_value, dtype)} to {format_number(bucket.high_value, dtype)}",
            f"{bucket.sample_count:,.0f} rows",
            100 * bucket.sample_count / highest,
        )
        for bucket in buckets
    ]


def percent(share: float) -> str:
    """Format a share as ``12.3%``; a share too small for that is not shown as zero."""
    return "<0.1%" if 0 < share < 0.0005 else f"{100 * share:.1f}%"


def format_number(value: float, dtype: str) -> str:
    """
    Format a number for people; instants, which the statistics hold as seconds since 1970 UTC, as dates and times.

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
