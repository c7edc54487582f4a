"""Snapshots, as the REST API shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel


class Dataset(BaseModel):
    """The snapshots of a pipeline."""

    name: str
    """The pipeline's."""
    num_snapshots: int
    newest: datetime
    """End of the newest data interval."""


class Datasets(BaseModel):
    """Of the pipelines that the asker may read."""

    datasets: list[Dataset]
    unreachable: list[str] = []
    """A sentence for each store that did not answer, with the team whose datasets are missing."""


class Deprecation(BaseModel):
    """Why no new work starts from a snapshot."""

    reason: str
    by: str
    at: datetime


class SnapshotSummary(BaseModel):
    """A snapshot, as lists have it."""

    name: str
    version: str
    """SHA-256: equal rows of equal intervals have one version, wherever they are committed."""
    place: str
    """In the store."""
    interval_start: datetime
    interval_end: datetime
    """As-of time: nothing that became known at or after it is in the snapshot."""
    num_rows: int
    num_bytes: int
    schema_hash: str
    committed_at: datetime
    deprecated: Deprecation | None


class SnapshotPage(BaseModel):
    """A page of a dataset's snapshots."""

    snapshots: list[SnapshotSummary]
    damaged: list[str]
    """Places whose snapshot cannot be read: ``mlops store verify`` says what it affects."""
    next: str | None
    """The cursor of the next page; null on the last one."""


class Period(BaseModel):
    """An hour, day, week or month of a snapshot."""

    name: str
    num_rows: int
    num_bytes: int


class Split(BaseModel):
    """Rows that are trained on, or held out."""

    num_rows: int
    periods: list[str]
    """In which it has rows, oldest first."""


class Snapshot(SnapshotSummary):
    """A snapshot, and where it came from."""

    columns: dict[str, str]
    """Name to type, in their order."""
    event_time: str
    """Column that decides to which period a row belongs."""
    timezone: str
    grain: str
    """What the periods are."""
    window: list[str]
    """All periods of the window, whether they have rows or not, oldest first."""
    periods: list[Period]
    """Those with rows."""
    splits: dict[str, Split]
    sources: dict[str, dict[str, Any]]
    """Of each its kind, the position that was read, and the rows."""
    creator: dict[str, Any]
    """The run of Airflow that made it."""
    engine: str


class PeriodDifference(BaseModel):
    """A period whose rows are not the same in two snapshots."""

    name: str
    rows_before: int | None
    """Null where the first snapshot has none."""
    rows_after: int | None


class SnapshotDifference(BaseModel):
    """In what two snapshots differ; of rows within a period ``mlops datasets diff`` tells more."""

    before: str
    """Version."""
    after: str
    columns_added: dict[str, str]
    """Name to type."""
    columns_removed: dict[str, str]
    columns_retyped: dict[str, tuple[str, str]]
    """Name to the type before and after."""
    periods: list[PeriodDifference]
