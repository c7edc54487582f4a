"""
The newest day held against the days before it.

In a window of 30 days the newest is a thirtieth of the rows: whatever it holds moves the window's distributions by
little. So it is compared with the days before it, as they are with each other: how far a day usually is from the others
says how far the newest may be. So is each other day that has not passed yet, for a day that failed is still there in
the next night's window.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Final, NamedTuple

import polars as pl
from tensorflow_metadata.proto.v0 import statistics_pb2

from mlops.contract.sections.validate import NewestDay
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

NEWEST_DAY: Final = "NEWEST_DAY_UNLIKE_EARLIER_DAYS"
ONE_VALUE: Final = "share of one value"
EARLIER_DAYS: Final = "days before"
"""Name of the reference."""
FARTHEST: Final = 1.0
"""Distance of two days that have nothing in common, by each of the measures."""
MIN_DAYS: Final = 7
"""Fewest earlier days with rows that say how far days usually are from each other: a whole week."""
MOST_DAYS: Final = 60
"""Earlier days that say what is usual, the newest of them: what a year's window costs is then that of two months."""
_MOST_ROWS: Final = 20_000
"""Rows of a day that are looked at where it has more, evenly spread: what chance adds is then below 0.001."""
_MOST_VALUES: Final = 200
"""The most frequent strings that are told from each other."""


@dataclass(frozen=True, slots=True)
class Days:
    """The days with rows of a window, dealt out to those that are to be judged and those that say what is usual."""

    new: Sequence[str]
    """The newest day, and before it those of earlier nights that did not pass, oldest first."""
    usual: Sequence[str]
    """The days that say what is usual, oldest first."""

    @classmethod
    def of(cls, days: Sequence[str], passed: Collection[str], interval_start: str) -> Days:
        """
        :param days: with rows, oldest first
        :param passed: those of the snapshot that passed last
        :param interval_start: first day of the data interval: the days before it were those of earlier nights
        """
        usual = [day for day in days if day in passed]
        if len(usual) < MIN_DAYS:  # of too few days nothing can be said
            return cls(days[-1:], days[-1 - MOST_DAYS : -1])
        # A day that failed and was left as it is must not say what is usual.
        failed = [day for day in days[:-1] if day not in passed and day < interval_start]
        return cls([*failed, *days[-1:]], usual[-MOST_DAYS:])

    @property
    def are_enough(self) -> bool:
        return len(self.usual) >= MIN_DAYS and len(self.new) > 0

    @property
    def usual_name(self) -> str:
        return f"{self.usual[0]} to {self.usual[-1]}"


@dataclass(frozen=True, slots=True)
class _DayCounts:
    """Rows by bin of each day."""

    labels: Sequence[str]
    is_value: Sequence[bool]
    """For each bin, whether it holds one value only, or none at all."""
    days: Mapping[str, Sequence[int]]

    def totals(self, days: Sequence[str]) -> list[int]:
        return [sum(column) for column in zip(*(self.days[day] for day in days), strict=True)]

    def beside(self, day: str, totals: Sequence[int]) -> BinCounts:
        """
        Return a day beside others.

        :param totals: of the others
        """
        found = self.days[day]
        return BinCounts(self.labels, totals, found, sum(totals), sum(found))


def day_distance(
    column: Column, feature: statistics_pb2.FeatureNameStatistics, days: Days, config: NewestDay, deviations: float
) -> ColumnDistance | None:
    """
    Compare a column on the new days with the days before them.

    :param feature: the column's statistics in the whole window
    :param deviations: standard deviations that chance may add
    :return: of the new day that is farthest; None if the column says nothing but which day it is
    """
    is_text = feature.HasField("string_stats")
    looked_at = [*days.usual, *days.new]
    counts = _of_values(column, feature, looked_at) if is_text else _of_numbers(column, feature, looked_at)
    measures = [_by_distance(JENSEN_SHANNON, jensen_shannon), _one_value]
    if is_text:
        # Of many values each is a small share, and of few one is a large one.
        measures.append(_by_distance(L_INFINITY, l_infinity))
    found = [
        (measured, day) for measure in measures for day, measured in measure(counts, days, config, deviations).items()
    ]
    (name, distance, threshold), day = max(found, key=lambda each: each[0].distance / each[0].threshold)
    if distance > threshold and _tells_the_day(column, list(counts.days)):
        return None
    bins = counts.beside(day, counts.totals(days.usual))
    return ColumnDistance(
        column=column.name,
        measure=name,
        distance=distance,
        threshold=threshold,
        distribution=shown(bins, (days.usual_name, day), is_text=is_text),
    )


class _Measured(NamedTuple):
    measure: str
    distance: float
    threshold: float


_Measure = Callable[[_DayCounts, Days, NewestDay, float], Mapping[str, _Measured]]
"""A measure of each new day."""


def _by_distance(name: str, distance_of: Callable[[BinCounts, float], tuple[float, float]]) -> _Measure:
    """Return the measure of how far a day is from the usual ones, and how far these are from each other."""

    def measure(counts: _DayCounts, days: Days, config: NewestDay, deviations: float) -> Mapping[str, _Measured]:
        usual, totals = 0.0, counts.totals(days.usual)
        for day in days.usual:
            others = [total - own for total, own in zip(totals, counts.days[day], strict=True)]
            distance, by_chance = distance_of(counts.beside(day, others), deviations)
            usual = max(usual, distance - by_chance)
        allowed, found = max(config.least, config.factor * usual), {}
        for day in days.new:
            distance, by_chance = distance_of(counts.beside(day, totals), deviations)
            found[day] = _Measured(name, distance, allowed + by_chance)
        return found

    return measure


def _one_value(counts: _DayCounts, days: Days, config: NewestDay, deviations: float) -> Mapping[str, _Measured]:
    """Return the share of the value that all rows of a day have, where no value has as much of any usual day."""
    usual = max(max(counts.days[day]) / sum(counts.days[day]) for day in days.usual)
    found = {}
    for day in days.new:
        own = counts.days[day]
        num_rows, most = sum(own), max(own)
        if usual < 1 and most == num_rows and counts.is_value[own.index(most)]:
            found[day] = _Measured(ONE_VALUE, 1.0, most_by_chance(num_rows, usual, deviations) / num_rows)
    return found


def unlike_earlier_days(column: ColumnDistance) -> Anomaly:
    """Describe a column of which a new day is too far from the days before it."""
    day = column.distribution.found_name
    return Anomaly(
        column=column.column,
        kind=NEWEST_DAY,
        title="A day unlike the days before it",
        expected=f"about the distribution of {column.distribution.expected_name}: {column.measure} of at most "
        f"{column.threshold:.3g}, by how far those days are from each other",
        found=f"the distribution of {day} is not that of the days before: {column.measure} {column.distance:.3g}",
        examples=largest_changes(column.distribution),
        days=(day,),
        fix=f"add {column.column} to validate.newest_day.leave_out for this night, or for good where its days differ "
        "so",
        distribution=column.distribution,
    )


def _of_numbers(column: Column, feature: statistics_pb2.FeatureNameStatistics, looked_at: Sequence[str]) -> _DayCounts:
    assert column.values is not None, "numbers are read"
    buckets = reference_bins(feature.num_stats).buckets
    edges = [buckets[0].low_value, *(bucket.high_value for bucket in buckets)] if buckets else []
    cuts = pl.Series(edges, dtype=pl.Float64)
    days = {}
    parts = column.rows.by_day(as_number(column.values))
    for day in looked_at:
        values = parts[day]
        sample = values.gather_every(-(-values.len() // _MOST_ROWS)).cast(pl.Float64)
        present = sample.drop_nulls()
        numbers = present.drop_nans()
        found = [0] * (len(edges) + 1)
        for place, number in cuts.search_sorted(numbers, side="left").value_counts().iter_rows():
            found[place] = number
        days[day] = [*found, present.len() - numbers.len(), sample.null_count()]
    alone = [False, *(is_point(low, high) for low, high in pairwise(edges)), False] if edges else [False]
    return _DayCounts([*ranges(edges), NOT_A_NUMBER, NO_VALUE], [*alone, True, True], days)


def _of_values(column: Column, feature: statistics_pb2.FeatureNameStatistics, looked_at: Sequence[str]) -> _DayCounts:
    told = [bucket.label for bucket in feature.string_stats.rank_histogram.buckets[:_MOST_VALUES]]
    places = {value: place for place, value in enumerate(told)}
    others, missing = len(told), len(told) + 1
    days = {day: [0] * (len(told) + 2) for day in looked_at}
    for day, value, is_there, number in column.rows.counts_by_day(column.name, told, looked_at).iter_rows():
        days[day][places.get(value, others) if is_there else missing] += number
    return _DayCounts([*told, OTHER_VALUES, NO_VALUE], [*(True for _ in told), False, True], days)


def _tells_the_day(column: Column, days: Sequence[str]) -> bool:
    """Tell a column of one value a day, which follows from the calendar: the month is another one on its first day."""
    value = pl.col(column.name)
    by_day = column.rows.table.group_by(column.rows.day.alias("day"))
    found = by_day.agg(value.n_unique().alias("distinct"), value.first().cast(pl.String).alias("value"))
    values = {}
    for day, distinct, text in found.collect(engine="streaming").iter_rows():
        if distinct != 1 or text is None:
            return False
        values[day] = text.removesuffix(".0")
    return any(
        all(values[day] in (text, text.lstrip("0")) for day, text in zip(days, texts, strict=True))
        for texts in zip(*(_calendar_texts(date.fromisoformat(day)) for day in days), strict=True)
    )


def _calendar_texts(day: date) -> Sequence[str]:
    weekday = day.weekday()
    numbers = [weekday, weekday + 1, (weekday + 1) % 7, day.isocalendar().week, (day.month + 2) // 3]
    formats = ["%Y", "%m", "%d", "%j", "%Y%m", "%Y%m%d", "%Y-%m", "%Y-%m-%d", "%a", "%A", "%b", "%B"]
    return [*map(str, numbers), *map(day.strftime, formats)]
