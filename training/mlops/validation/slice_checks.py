"""
The check of slices: each value of a column is a part of the rows, whose newest day is compared with its own earlier
days.

What breaks for one carrier is a small share of all rows, and passes every check on them as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from mlops.contract.sections.validate import Volume
from mlops.contract.step import BadConfigError
from mlops.validation.anomalies import NUM_EXAMPLES, Anomaly
from mlops.validation.rows import Rows
from mlops.validation.window_days import WindowDays

SLICE_VANISHED: Final = "SLICE_VANISHED"
SLICE_APPEARED: Final = "SLICE_APPEARED"
SLICE_VOLUME: Final = "SLICE_VOLUME"
SLICE_MISSING_VALUES: Final = "SLICE_MISSING_VALUES"
MAX_SLICES: Final = 1_000
_MIN_ROWS: Final = 10
"""
Fewest rows on a day from which a slice is judged; one with fewer may have none on the next by chance: e ** -10 is 5 in
100,000.
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
    """Number of rows on the newest day."""
    compared: int | None
    """Number of rows on the day that the newest is compared with; None if volumes are not compared."""

    @property
    def name(self) -> str:
        return f"{self.column}={self.value}"


@dataclass(frozen=True, slots=True)
class _Days:
    """Rows and missing values of a slice by day."""

    num_rows: Mapping[str, int]
    missing: Mapping[str, Mapping[str, int]]
    """Number of missing values by column, then by day."""

    def missing_share(self, column: str, day: str) -> float:
        return self.missing[column][day] / self.num_rows[day]

    def worst_before(self, column: str, newest: str) -> str | None:
        """Return the earlier day with the largest share of missing values; None if no day has enough rows to tell."""
        days = [day for day, count in self.num_rows.items() if day != newest and count >= _MIN_ROWS]
        return max(days, key=lambda day: self.missing_share(column, day), default=None)

    def missing_rises(self, column: str, newest: str, tolerance: float) -> bool:
        """
        Return True if the missing share exceeds that of every earlier day by more than is tolerated, and more than by
        chance.
        """
        worst = self.worst_before(column, newest)
        if worst is None or self.num_rows.get(newest, 0) < _MIN_ROWS:
            return False
        days = (newest, worst)
        pooled = sum(self.missing[column][day] for day in days) / sum(self.num_rows[day] for day in days)
        variance = pooled * (1 - pooled) * sum(1 / self.num_rows[day] for day in days)
        rise = self.missing_share(column, newest) - self.missing_share(column, worst)
        return rise > tolerance + _DEVIATIONS * math.sqrt(variance)


def check_slices(
    rows: Rows, days: WindowDays, column: str, volume: Volume | None, tolerance: float
) -> tuple[list[Anomaly], list[SliceSummary]]:
    """
    Check each value of a column on its own.

    :param days: of which at least two have rows, the newest among them
    :param volume: None where the volume is not to be checked, or has failed for the rows as a whole
    :param tolerance: most that a slice's missing share may rise
    :raises BadConfigError: where the column has too many values
    """
    if column not in rows.schema:
        return [], []
    slices = _by_slice(rows, column)
    compared = days.compared(volume) if volume is not None else None
    anomalies = []
    for value, slice_days in slices.items():
        anomalies += _check_rows(slice_days, f"{column}={value}", days, volume, compared)
    anomalies += _check_missing(slices, column, days.newest, tolerance)
    summaries = [
        SliceSummary(
            column=column,
            value=value,
            num_rows=sum(found.num_rows.values()),
            newest=found.num_rows.get(days.newest, 0),
            compared=found.num_rows.get(compared, 0) if compared is not None else None,
        )
        for value, found in slices.items()
    ]
    return anomalies, sorted(summaries, key=lambda summary: (-summary.num_rows, summary.value))


def _by_slice(rows: Rows, column: str) -> dict[str, _Days]:
    others = [name for name in rows.schema if name != column]
    by_day = (
        rows.table.group_by(pl.col(column).cast(pl.String).alias("slice"), rows.day.alias("day"))
        .agg(pl.len().alias("rows"), pl.struct(pl.col(others).null_count()).alias("missing"))
        .sort("slice", "day", nulls_last=True)
        .collect(engine="streaming")
    )
    if by_day["slice"].n_unique() > MAX_SLICES:
        raise BadConfigError(
            f"validate.slices names the column {column!r}, which has {by_day['slice'].n_unique():,} different values: "
            f"slices are for columns of at most {MAX_SLICES:,}"
        )
    slices: dict[str, _Days] = {}
    for (value,), found in by_day.group_by("slice", maintain_order=True):
        on = found["day"].to_list()
        missing = found["missing"].struct.unnest()
        slices["null" if value is None else str(value)] = _Days(
            num_rows=dict(zip(on, found["rows"], strict=True)),
            missing={name: dict(zip(on, missing[name], strict=True)) for name in others},
        )
    return slices


def _check_rows(
    found: _Days, name: str, days: WindowDays, volume: Volume | None, compared: str | None
) -> list[Anomaly]:
    *earlier, newest = days.looked_at
    now = found.num_rows.get(newest, 0)
    before = [found.num_rows.get(day, 0) for day in earlier]
    usual = sum(before) / len(before)
    if not now and min(before) and usual >= _MIN_ROWS:
        return [
            _about_rows(
                name,
                SLICE_VANISHED,
                "Slice vanished",
                f"about {usual:,.0f} rows, as on every day before",
                f"no rows on {newest}",
                newest,
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
                newest,
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
            f"{now:,} rows on {newest}, {then:,} on {compared}", newest,
        )
    ]  # fmt: skip


def _about_rows(name: str, kind: str, title: str, expected: str, found: str, day: str) -> Anomaly:
    return Anomaly(
        column=None,
        kind=kind,
        title=title,
        expected=expected,
        found=found,
        days=(day,),
        fix=f"If the source delivered all of {day}, take the column of {name} out of validate.slices for this night; "
        "else load the day again at the source and run the ingest again",
        slice=name,
    )


def _check_missing(slices: Mapping[str, _Days], column: str, newest: str, tolerance: float) -> list[Anomaly]:
    anomalies = []
    for name in next(iter(slices.values())).missing:
        risen = []
        for value, found in slices.items():
            if found.missing_rises(name, newest, tolerance) and (worst := found.worst_before(name, newest)):
                risen.append((found.missing_share(name, newest), found.missing_share(name, worst), value))
        if risen:
            anomalies.append(_about_missing(name, column, sorted(risen, reverse=True), len(slices), newest))
    return anomalies


def _about_missing(
    name: str, column: str, risen: Sequence[tuple[float, float, str]], num_slices: int, newest: str
) -> Anomaly:
    """Return one anomaly for a column that fails in many slices."""
    share, before, value = risen[0]
    also = f"; so in {len(risen)} of the {num_slices} slices of {column}" if len(risen) > 1 else ""
    return Anomaly(
        column=name,
        kind=SLICE_MISSING_VALUES,
        title="Too many missing values",
        expected=f"at most about {_percent(before)}, as on the worst day before",
        found=f"no value in {_percent(share)} of the rows of {newest}{also}",
        examples=tuple(
            f"{column}={value}: {_percent(before)} -> {_percent(now)}" for now, before, value in risen[:NUM_EXAMPLES]
        ),
        days=(newest,),
        fix="set validate.slice_tolerance to more",
        slice=f"{column}={value}",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
