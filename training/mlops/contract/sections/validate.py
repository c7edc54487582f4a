"""The section ``validate``: what is expected of the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import Field

from mlops.contract.section import Section

MAX_SLICES: Final = 1_000
"""Most values of a column whose slices are looked at."""


class Volume(Section):
    """The newest period (hour, day, week or month) must have about as many rows as an earlier one."""

    tolerance: float = Field(default=0.2, gt=0, lt=1)
    """0.2: between 0.8 and 1.2 times."""
    against: int | None = Field(default=None, ge=1)
    """Compare with the period this many before; where ``ingest.calendar`` expects no rows in it, with that twice as
    many before, and so on. null: with the last of its kind that passed, or the one before it: hours with that hour of
    the weekday or else of the day before, days with the same weekday, months with the same month; or else with the one
    before."""

    @property
    def low(self) -> float:
        """The fewest rows, as a share."""
        return round(1 - self.tolerance, 9)

    @property
    def high(self) -> float:
        """The most rows, as a share."""
        return round(1 + self.tolerance, 9)


class Drift(Section):
    """
    How far a column's distribution may be from that of the champion's snapshot and of the previous one, and that of
    the serving log from the snapshot's. What chance would do to so many rows is allowed on top.
    """

    numbers: float = Field(default=0.1, gt=0, le=1)
    """Jensen-Shannon divergence of a column of numbers, 0 (equal) to 1 (nothing in common)."""
    values: float = Field(default=0.1, gt=0, le=1)
    """L-infinity distance of a column of strings: by how much any one value's share may change."""
    columns: dict[str, Annotated[float, Field(gt=0, le=1)] | None] = {}
    """Instead of these, for single columns; null leaves a column out, such as a number that only ever grows."""

    def allowed(self, column: str, *, is_text: bool) -> float | None:
        """How far this column may be; None: it is not compared."""
        return self.columns.get(column, self.values if is_text else self.numbers)


class Newest(Section):
    """
    How far a column's distribution in the newest period may be from that of those before it in the window, by the
    measures of :class:`Drift`. What chance would do to so many rows is allowed on top.
    """

    factor: float = Field(default=3.0, ge=1)
    """At most so many times as far as the period before that is farthest from the others."""
    least: float = Field(default=0.15, gt=0, le=1)
    """As far as this it may be in any case."""
    leave_out: list[str] = []
    """Columns that are not compared."""


class ServingLog(Section):
    """Requests that the model answered, in files; their columns are called as in the snapshot."""

    path: str
    """File or glob: relative to the project folder, absolute, or ``s3://bucket/...``; .parquet, or .csv or .jsonl, each
    of the two also as .gz or .zst."""
    event_time: str
    """Column with the instant of a request; those of the snapshot's window are looked at."""
    null_values: list[str] = ["NA"]
    """Strings that mean null in CSV files."""


class Validate(Section):
    """Hold the snapshot against all that is expected of it; stop the pipeline where it does not fit."""

    schema_path: str
    """TFDV schema (schema.pbtxt), relative to the project folder."""
    volume: Volume | None = Volume()
    """Also holds the snapshot against the previous one: its rows a period, and every period that both have."""
    drift: Drift | None = Drift()
    """null: distributions are not compared."""
    newest: Newest | None = Newest()
    """null: the newest period is held against the schema alone, and not against those before it."""
    unique: list[Annotated[list[str], Field(min_length=1)]] = []
    """Keys: lists of columns which together occur at most once."""
    max_age_hours: float | None = Field(default=None, gt=0)
    """The newest row may be at most so many hours older than the interval's end; None: any in the newest period will
    do."""
    slices: list[str] = []
    """Columns of few values, each of which is looked at on its own: its newest period is held against its earlier
    ones."""
    slice_tolerance: float = Field(default=0.25, gt=0, le=1)
    """By how much a column's share of missing values may rise in a slice above that of its worst period before, beyond
    what chance would do."""
    serving_log: ServingLog | None = None
    """What the model was asked in production, to be held against what it is trained on."""

    def named_columns(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Each column that a setting names, with the keys of the setting below this section."""
        lists: dict[tuple[str, ...], list[str]] = {("unique", str(n)): key for n, key in enumerate(self.unique)}
        lists |= {("slices",): self.slices, ("newest", "leave_out"): self.newest.leave_out if self.newest else []}
        for place, columns in lists.items():
            for number, column in enumerate(columns):
                yield (*place, str(number)), column
        for column in self.drift.columns if self.drift else ():
            yield ("drift", "columns", column), column
