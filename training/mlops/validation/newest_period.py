"""
The newest period held against those before it.

In a window of 30 days the newest is a thirtieth of the rows: whatever it holds moves the window's distributions by
little. So it is compared with the days before it, as they are with each other: how far a day usually is from the others
says how far the newest may be. So is each other day that has not passed yet, for a day that failed is still there in
the next night's window. Likewise of hours, weeks and months.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final, NamedTuple

import polars as pl
from tensorflow_metadata.proto.v0 import statistics_pb2

from mlops.contract.grain import Grain
from mlops.contract.sections.validate import Newest
from mlops.validation.anomalies import Anomaly, ColumnDistance
from mlops.validation.bins import is_point
from mlops.validation.chance import most_by_chance
from mlops.validation.drift import (
    JENSEN_SHANNON,
    L_INFINITY,
    NO_VALUE,
    NOT_A_NUMBER,
    OTHER_VALUES,
    BinCounts,
    jensen_shannon,
    l_infinity,
    largest_changes,
    ranges,
    shown,
)
from mlops.validation.rows import Column
from mlops.validation.statistics import as_number, reference_bins
from mlops.validation.window_periods import not_passed

NEWEST_PERIOD: Final = "NEWEST_PERIOD_UNLIKE_EARLIER_PERIODS"
ONE_VALUE: Final = "share of one value"
FARTHEST: Final = 1.0
"""Distance of two periods that have nothing in common, by each of the measures."""
MIN_PERIODS: Final = 7
"""Fewest earlier periods with rows that say how far they usually are from each other: of days, a whole week."""
MOST_PERIODS: Final = 60
"""Earlier periods that say what is usual, the newest of them: a year's window then costs as one of two months."""
_MOST_ROWS: Final = 20_000
"""Rows of a period that are looked at where it has more, evenly spread: what chance adds is then below 0.001."""
_MOST_VALUES: Final = 200
"""The most frequent strings that are told from each other."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The periods with rows of a window, dealt out to those that are to be judged and those that say what is usual."""

    new: Sequence[str]
    """The newest one, and before it those of earlier nights that did not pass, oldest first."""
    usual: Sequence[str]
    """Those that say what is usual, oldest first."""

    @classmethod
    def of(cls, periods: Sequence[str], passed: Collection[str], interval_start: str) -> Judged:
        """
        :param periods: with rows, oldest first
        :param passed: those of the snapshot that passed last
        :param interval_start: first period of the data interval: those before it were of earlier nights
        """
        usual = [period for period in periods if period in passed]
        if len(usual) < MIN_PERIODS:  # of too few nothing can be said
            return cls(periods[-1:], periods[-1 - MOST_PERIODS : -1])
        # A period that failed and was left as it is must not say what is usual.
        failed = not_passed(periods, passed, interval_start)
        return cls([*failed, *periods[-1:]], usual[-MOST_PERIODS:])

    @property
    def are_enough(self) -> bool:
        return len(self.usual) >= MIN_PERIODS and len(self.new) > 0

    @property
    def usual_name(self) -> str:
        return f"{self.usual[0]} to {self.usual[-1]}"


@dataclass(frozen=True, slots=True)
class _PeriodCounts:
    """Rows by bin of each period."""

    labels: Sequence[str]
    is_value: Sequence[bool]
    """For each bin, whether it holds one value only, or none at all."""
    periods: Mapping[str, Sequence[int]]

    def totals(self, periods: Sequence[str]) -> list[int]:
        return [sum(column) for column in zip(*(self.periods[period] for period in periods), strict=True)]

    def beside(self, period: str, totals: Sequence[int]) -> BinCounts:
        """
        Return a period beside others.

        :param totals: of the others
        """
        found = self.periods[period]
        return BinCounts(self.labels, totals, found, sum(totals), sum(found))


def period_distance(
    column: Column, feature: statistics_pb2.FeatureNameStatistics, periods: Judged, config: Newest, deviations: float
) -> ColumnDistance | None:
    """
    Compare a column in the new periods with those before them.

    :param feature: the column's statistics in the whole window
    :param deviations: standard deviations that chance may add
    :return: of the new period that is farthest; None if the column says nothing but which period it is
    """
    is_text = feature.HasField("string_stats")
    looked_at = [*periods.usual, *periods.new]
    counts = _of_values(column, feature, looked_at) if is_text else _of_numbers(column, feature, looked_at)
    measures = [_by_distance(JENSEN_SHANNON, jensen_shannon), _one_value]
    if is_text:
        # Of many values each is a small share, and of few one is a large one.
        measures.append(_by_distance(L_INFINITY, l_infinity))
    found = [
        (measured, period)
        for measure in measures
        for period, measured in measure(counts, periods, config, deviations).items()
    ]
    (name, distance, threshold), period = max(found, key=lambda each: each[0].distance / each[0].threshold)
    if distance > threshold and _tells_the_period(column, list(counts.periods)):
        return None
    bins = counts.beside(period, counts.totals(periods.usual))
    return ColumnDistance(
        column=column.name,
        measure=name,
        distance=distance,
        threshold=threshold,
        distribution=shown(bins, (periods.usual_name, period), is_text=is_text),
    )


class _Measured(NamedTuple):
    measure: str
    distance: float
    threshold: float


_Measure = Callable[[_PeriodCounts, Judged, Newest, float], Mapping[str, _Measured]]
"""A measure of each new period."""


def _by_distance(name: str, distance_of: Callable[[BinCounts, float], tuple[float, float]]) -> _Measure:
    """Return the measure of how far a period is from the usual ones, and how far these are from each other."""

    def measure(counts: _PeriodCounts, periods: Judged, config: Newest, deviations: float) -> Mapping[str, _Measured]:
        usual, totals = 0.0, counts.totals(periods.usual)
        for period in periods.usual:
            others = [total - own for total, own in zip(totals, counts.periods[period], strict=True)]
            distance, by_chance = distance_of(counts.beside(period, others), deviations)
            usual = max(usual, distance - by_chance)
        allowed, found = max(config.least, config.factor * usual), {}
        for period in periods.new:
            distance, by_chance = distance_of(counts.beside(period, totals), deviations)
            found[period] = _Measured(name, distance, allowed + by_chance)
        return found

    return measure


def _one_value(counts: _PeriodCounts, periods: Judged, config: Newest, deviations: float) -> Mapping[str, _Measured]:
    """Return the share of the value that all rows of a period have, where no value has as much of any usual one."""
    usual = max(max(counts.periods[period]) / sum(counts.periods[period]) for period in periods.usual)
    found = {}
    for period in periods.new:
        own = counts.periods[period]
        num_rows, most = sum(own), max(own)
        if usual < 1 and most == num_rows and counts.is_value[own.index(most)]:
            found[period] = _Measured(ONE_VALUE, 1.0, most_by_chance(num_rows, usual, deviations) / num_rows)
    return found


def unlike_earlier_periods(column: ColumnDistance, grain: Grain) -> Anomaly:
    """Describe a column of which a new period is too far from those before it."""
    period = column.distribution.found_name
    return Anomaly(
        column=column.column,
        kind=NEWEST_PERIOD,
        title=f"{'An' if grain == 'hour' else 'A'} {grain} unlike the {grain}s before it",
        expected=f"about the distribution of {column.distribution.expected_name}: {column.measure} of at most "
        f"{column.threshold:.3g}, by how far those {grain}s are from each other",
        found=f"the distribution of {period} is not that of the {grain}s before: {column.measure} "
        f"{column.distance:.3g}",
        examples=largest_changes(column.distribution),
        periods=(period,),
        fix=f"add {column.column} to validate.newest.leave_out for this once, or for good where its {grain}s differ so",
        distribution=column.distribution,
    )


def _of_numbers(
    column: Column, feature: statistics_pb2.FeatureNameStatistics, looked_at: Sequence[str]
) -> _PeriodCounts:
    assert column.values is not None, "numbers are read"
    buckets = reference_bins(feature.num_stats).buckets
    edges = [buckets[0].low_value, *(bucket.high_value for bucket in buckets)] if buckets else []
    cuts = pl.Series(edges, dtype=pl.Float64)
    periods = {}
    parts = column.rows.by_period(as_number(column.values))
    for period in looked_at:
        values = parts[period]
        sample = values.gather_every(-(-values.len() // _MOST_ROWS)).cast(pl.Float64)
        present = sample.drop_nulls()
        numbers = present.drop_nans()
        found = [0] * (len(edges) + 1)
        for place, number in cuts.search_sorted(numbers, side="left").value_counts().iter_rows():
            found[place] = number
        periods[period] = [*found, present.len() - numbers.len(), sample.null_count()]
    alone = [False, *(is_point(low, high) for low, high in pairwise(edges)), False] if edges else [False]
    return _PeriodCounts([*ranges(edges), NOT_A_NUMBER, NO_VALUE], [*alone, True, True], periods)


def _of_values(
    column: Column, feature: statistics_pb2.FeatureNameStatistics, looked_at: Sequence[str]
) -> _PeriodCounts:
    told = [bucket.label for bucket in feature.string_stats.rank_histogram.buckets[:_MOST_VALUES]]
    places = {value: place for place, value in enumerate(told)}
    others, missing = len(told), len(told) + 1
    periods = {period: [0] * (len(told) + 2) for period in looked_at}
    for period, value, is_there, number in column.rows.counts_by_period(column.name, told, looked_at).iter_rows():
        periods[period][places.get(value, others) if is_there else missing] += number
    return _PeriodCounts([*told, OTHER_VALUES, NO_VALUE], [*(True for _ in told), False, True], periods)


def _tells_the_period(column: Column, periods: Sequence[str]) -> bool:
    """Tell a column of one value a period, which follows from the calendar: the month is another on its first day."""
    value, kind = pl.col(column.name), column.rows.kind
    by_period = column.rows.table.group_by(column.rows.period.alias("period"))
    found = by_period.agg(value.n_unique().alias("distinct"), value.first().cast(pl.String).alias("value"))
    values = {}
    for period, distinct, text in found.collect(engine="streaming").iter_rows():
        if distinct != 1 or text is None:
            return False
        values[period] = text.removesuffix(".0")
    return any(
        all(values[period] in (text, text.lstrip("0")) for period, text in zip(periods, texts, strict=True))
        for texts in zip(*(_calendar_texts(kind.begin(period)) for period in periods), strict=True)
    )


def _calendar_texts(begin: datetime) -> Sequence[str]:
    weekday = begin.weekday()
    numbers = [weekday, weekday + 1, (weekday + 1) % 7, begin.isocalendar().week, (begin.month + 2) // 3, begin.hour]
    formats = ["%Y", "%m", "%d", "%j", "%Y%m", "%Y%m%d", "%Y-%m", "%Y-%m-%d", "%a", "%A", "%b", "%B"]
    return [*map(str, numbers), *map(begin.strftime, formats)]
