"""
The check of slices: each value of a column is a part of the rows, whose newest period is compared with its own earlier
ones.

What breaks for one carrier is a small share of all rows, and passes every check on them as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from mlops.contract.sections.validate import MAX_SLICES, Volume
from mlops.contract.step import BadConfigError
from mlops.validation.anomalies import NUM_EXAMPLES, Anomaly
from mlops.validation.rows import Rows
from mlops.validation.window_periods import WindowPeriods

SLICE_VANISHED: Final = "SLICE_VANISHED"
SLICE_APPEARED: Final = "SLICE_APPEARED"
SLICE_VOLUME: Final = "SLICE_VOLUME"
SLICE_MISSING_VALUES: Final = "SLICE_MISSING_VALUES"
_MIN_ROWS: Final = 10
"""
Fewest rows of a period from which a slice is judged; one with fewer may have none in the next by chance: e ** -10 is 5
in 100,000.
"""
_DEVIATIONS: Final = 4.0
"""Standard deviations that chance may add: one-sided 3 in 100,000, for each slice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceSummary:
    """The report's summary of a slice."""

    column: str
    value: str
    num_rows: int
    """Number of rows in the whole window."""
    newest: int
    """Number of rows in the newest period."""
    compared: int | None
    """Number of rows in the period that the newest is compared with; None if volumes are not compared."""

    @property
    def name(self) -> str:
        return f"{self.column}={self.value}"


@dataclass(frozen=True, slots=True)
class _Periods:
    """Rows and missing values of a slice by period."""

    num_rows: Mapping[str, int]
    missing: Mapping[str, Mapping[str, int]]
    """Number of missing values by column, then by period."""

    def missing_share(self, column: str, period: str) -> float:
        return self.missing[column][period] / self.num_rows[period]

    def worst_before(self, column: str, newest: str) -> str | None:
        """Return the earlier period with the largest share of missing values; None if none has enough rows to tell."""
        periods = [period for period, count in self.num_rows.items() if period != newest and count >= _MIN_ROWS]
        return max(periods, key=lambda period: self.missing_share(column, period), default=None)

    def missing_rises(self, column: str, newest: str, tolerance: float) -> bool:
        """
        Return True if the missing share exceeds that of every earlier period by more than is tolerated, and more than
        by chance.
        """
        worst = self.worst_before(column, newest)
        if worst is None or self.num_rows.get(newest, 0) < _MIN_ROWS:
            return False
        periods = (newest, worst)
        num_missing = sum(self.missing[column][period] for period in periods)
        pooled = num_missing / sum(self.num_rows[period] for period in periods)
        variance = pooled * (1 - pooled) * sum(1 / self.num_rows[period] for period in periods)
        rise = self.missing_share(column, newest) - self.missing_share(column, worst)
        return rise > tolerance + _DEVIATIONS * math.sqrt(variance)


def check_slices(
    rows: Rows, periods: WindowPeriods, column: str, volume: Volume | None, tolerance: float
) -> tuple[list[Anomaly], list[SliceSummary]]:
    """
    Check each value of a column on its own.

    :param periods: of which at least two have rows, the newest among them
    :param volume: None where the volume is not to be checked, or has failed for the rows as a whole
    :param tolerance: most that a slice's missing share may rise
    :raises BadConfigError: where the column has too many values
    """
    if column not in rows.schema:
        return [], []
    slices = _by_slice(rows, column)
    # Of periods before the window nobody knows the slices.
    within = replace(periods, earlier=())
    compared = next(iter(within.alike(periods.newest, volume)), None) if volume is not None else None
    anomalies = []
    for value, slice_periods in slices.items():
        anomalies += _check_rows(slice_periods, f"{column}={value}", periods, volume, compared)
    anomalies += _check_missing(slices, column, periods, tolerance)
    summaries = [
        SliceSummary(
            column=column,
            value=value,
            num_rows=sum(found.num_rows.values()),
            newest=found.num_rows.get(periods.newest, 0),
            compared=found.num_rows.get(compared, 0) if compared is not None else None,
        )
        for value, found in slices.items()
    ]
    return anomalies, sorted(summaries, key=lambda summary: (-summary.num_rows, summary.value))


def _by_slice(rows: Rows, column: str) -> dict[str, _Periods]:
    others = [name for name in rows.schema if name != column]
    by_period = (
        rows.table.group_by(pl.col(column).cast(pl.String).alias("slice"), rows.period.alias("period"))
        .agg(pl.len().alias("rows"), pl.struct(pl.col(others).null_count()).alias("missing"))
        .sort("slice", "period", nulls_last=True)
        .collect(engine="streaming")
    )
    if by_period["slice"].n_unique() > MAX_SLICES:
        raise BadConfigError(
            f"validate.slices names the column {column!r}, which has {by_period['slice'].n_unique():,} different "
            f"values: slices are for columns of at most {MAX_SLICES:,}"
        )
    slices: dict[str, _Periods] = {}
    for (value,), found in by_period.group_by("slice", maintain_order=True):
        on = found["period"].to_list()
        missing = found["missing"].struct.unnest()
        slices["null" if value is None else str(value)] = _Periods(
            num_rows=dict(zip(on, found["rows"], strict=True)),
            missing={name: dict(zip(on, missing[name], strict=True)) for name in others},
        )
    return slices


def _check_rows(
    found: _Periods, name: str, periods: WindowPeriods, volume: Volume | None, compared: str | None
) -> list[Anomaly]:
    *earlier, newest = periods.looked_at
    now = found.num_rows.get(newest, 0)
    before = [found.num_rows.get(period, 0) for period in earlier]
    usual = sum(before) / len(before)
    if not now and min(before) and usual >= _MIN_ROWS:
        return [
            _about_rows(
                name,
                SLICE_VANISHED,
                "Slice vanished",
                f"about {usual:,.0f} rows, as on every {periods.grain} before",
                f"no rows on {newest}",
                periods,
            )
        ]
    if not usual and now >= _MIN_ROWS:
        return [
            _about_rows(
                name,
                SLICE_APPEARED,
                "New slice",
                "a slice that was there before",
                f"{now:,} rows on {newest}, and none before",
                periods,
            )
        ]
    if volume is None or compared is None:
        return []
    then = found.num_rows.get(compared, 0)
    # Counts scatter by their square root.
    if abs(now - then) <= volume.tolerance * then + _DEVIATIONS * math.sqrt(now + then):
        return []
    return [
        _about_rows(
            name, SLICE_VOLUME, "Too few rows" if now < then else "Too many rows",
            f"{then * volume.low:,.0f} to {then * volume.high:,.0f} rows, give or take chance",
            f"{now:,} rows on {newest}, {then:,} on {compared}", periods,
        )
    ]  # fmt: skip


def _about_rows(name: str, kind: str, title: str, expected: str, found: str, periods: WindowPeriods) -> Anomaly:
    return Anomaly(
        column=None,
        kind=kind,
        title=title,
        expected=expected,
        found=found,
        periods=(periods.newest,),
        fix=f"If the source delivered all of {periods.newest}, take the column of {name} out of validate.slices for "
        f"this night; else load the {periods.grain} again at the source and run the ingest again",
        slice=name,
    )


def _check_missing(
    slices: Mapping[str, _Periods], column: str, periods: WindowPeriods, tolerance: float
) -> list[Anomaly]:
    anomalies, newest = [], periods.newest
    for name in next(iter(slices.values())).missing:
        risen = []
        for value, found in slices.items():
            if found.missing_rises(name, newest, tolerance) and (worst := found.worst_before(name, newest)):
                risen.append((found.missing_share(name, newest), found.missing_share(name, worst), value))
        if risen:
            anomalies.append(_about_missing(name, column, sorted(risen, reverse=True), len(slices), periods))
    return anomalies


def _about_missing(
    name: str, column: str, risen: Sequence[tuple[float, float, str]], num_slices: int, periods: WindowPeriods
) -> Anomaly:
    """Return one anomaly for a column that fails in many slices."""
    share, before, value = risen[0]
    also = f"; so in {len(risen)} of the {num_slices} slices of {column}" if len(risen) > 1 else ""
    return Anomaly(
        column=name,
        kind=SLICE_MISSING_VALUES,
        title="Too many missing values",
        expected=f"at most about {_percent(before)}, as on the worst {periods.grain} before",
        found=f"no value in {_percent(share)} of the rows of {periods.newest}{also}",
        examples=tuple(
            f"{column}={value}: {_percent(before)} -> {_percent(now)}" for now, before, value in risen[:NUM_EXAMPLES]
        ),
        periods=(periods.newest,),
        fix="set validate.slice_tolerance to more",
        slice=f"{column}={value}",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
