"""
Immutable snapshots: a manifest of content-addressed Parquet blobs, one partition per hour, day, week or month.

Blobs are canonical (equal rows give equal bytes), so nightly snapshots share the periods that did not change: a window
of 30 days costs one new day. The validation runtime reads snapshots too, so no pyarrow here.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from mlops.contract.grain import Grain, counted
from mlops.contract.manifest import Blob, Manifest, Partition, SplitPart
from mlops.contract.refs import DatasetRef, digest_of
from mlops.contract.sections.calendar import EVERY_DAY, AnyCalendar
from mlops.contract.sections.ingest import AnySplit, TimeSplit
from mlops.contract.step import BadDataError
from mlops.data.engine.engines import Engine, Table, as_table, on_spark, spark_session
from mlops.data.snapshots.calendar import check_newest, expected_periods
from mlops.data.snapshots.partitions import PeriodWriter, StoredPeriod, write_periods
from mlops.data.snapshots.splits import INDEX, SPLITS, periods_of
from mlops.data.sources.window import Window
from mlops.store import Store
from mlops.store_errors import DamagedObjectError

__all__ = ["MAX_BLOB_BYTES", "Blob", "Manifest", "Partition", "Snapshot", "SplitPart", "write_snapshot"]

MAX_BLOB_BYTES: Final = 128 * 1024 * 1024
_READERS: Final = 4
_INDEX: Final = "__split"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot opened for reading; its blobs are read when asked for, and every one is checked by its digest."""

    store: Store
    manifest: Manifest

    @classmethod
    def open(cls, store: Store, ref: DatasetRef) -> Snapshot:
        """
        Open a snapshot: read its manifest, and no blob.

        :raises DamagedObjectError: where the manifest is missing or not the one that was written
        """
        artifact = ref.artifacts["manifest"]
        try:
            return cls(store, Manifest.from_json(store.read(artifact)))
        except ValueError as error:
            raise DamagedObjectError(f"{artifact.key} in {store.uri}: {error}") from error

    @property
    def periods(self) -> list[str]:
        """Names of the periods that have rows, oldest first."""
        return [partition.period for partition in self.manifest.partitions]

    def split_periods(self, name: str) -> list[str]:
        """
        Return the names of the periods in which a split has rows, oldest first.

        :raises BadDataError: where the snapshot has no such split
        """
        if name not in self.manifest.splits:
            there = f"its splits: {', '.join(SPLITS)}" if self.manifest.splits else "ingest.split says that it has none"
            raise BadDataError(f"snapshot {self.manifest.name} has no split {name!r}; {there}")
        return list(self.manifest.splits[name].periods)

    def read(self, periods: Sequence[str] | None = None) -> pl.DataFrame:
        """
        Read rows in canonical order.

        :param periods: names, in the order wanted; None for all
        :raises BadDataError: where the snapshot has no such period
        :raises DamagedObjectError: naming the blob
        """
        wanted = self._partitions(self.periods if periods is None else periods)
        if not wanted:
            return self._no_rows()
        return self._read_blobs(blob for partition in wanted for blob in partition.blobs)

    def scan(self, periods: Sequence[str] | None = None, *, cache: Path) -> pl.LazyFrame:
        """
        Return the rows of :meth:`read`, read as they are needed.

        :param cache: folder for blobs of a remote store; must stay as long as the frame is in use
        """
        wanted = self._partitions(self.periods if periods is None else periods)
        if not wanted:
            return self._no_rows().lazy()
        return self._scan_blobs((blob for partition in wanted for blob in partition.blobs), cache)

    def read_split(self, name: str, periods: Sequence[str] | None = None) -> pl.DataFrame:
        """
        Read the rows of a split in canonical order.

        :param name: ``train``, ``validation`` or ``test``
        :param periods: only these of the split; None for all
        :raises BadDataError: where the snapshot has no such split, or the split no such period
        """
        wanted = self._split_partitions(name, periods)
        rows = self.read([partition.period for partition in wanted])
        if not (indexes := [partition.index for partition in wanted if partition.index]):
            return rows
        return rows.filter(self._read_blobs(indexes)[INDEX] == name)

    def scan_split(self, name: str, periods: Sequence[str] | None = None, *, cache: Path) -> pl.LazyFrame:
        """Return the rows of :meth:`read_split`, read as they are needed; see :meth:`scan`."""
        wanted = self._split_partitions(name, periods)
        rows = self.scan([partition.period for partition in wanted], cache=cache)
        if not (indexes := [partition.index for partition in wanted if partition.index]):
            return rows
        index = self._scan_blobs(indexes, cache).rename({INDEX: _INDEX})
        return pl.concat([rows, index], how="horizontal").filter(pl.col(_INDEX) == name).drop(_INDEX)

    def table(self, split: str, *, cache: Path) -> Table:
        """
        Return the rows of a split, on the engine that made the snapshot; every blob is checked by the process that
        reads it.

        :param cache: folder for blobs that are fetched to this machine
        """
        if self.manifest.engine == "polars":
            return as_table(self.scan_split(split, cache=cache))
        return on_spark([_Period(self, split, name) for name in self.split_periods(split)], spark_session())

    def _partitions(self, periods: Sequence[str]) -> list[Partition]:
        known = {partition.period: partition for partition in self.manifest.partitions}
        if missing := [name for name in periods if name not in known]:
            number = counted(len(known), self.manifest.grain)
            held = f"{number}, {self.periods[0]} to {self.periods[-1]}" if known else "no rows at all"
            raise BadDataError(f"snapshot {self.manifest.name} has no rows for {', '.join(missing)}; it holds {held}")
        return [known[name] for name in periods]

    def _split_partitions(self, name: str, periods: Sequence[str] | None) -> list[Partition]:
        of_split = self.split_periods(name)
        if periods is not None and (missing := [each for each in periods if each not in of_split]):
            raise BadDataError(
                f"the split {name!r} of snapshot {self.manifest.name} has no rows for {', '.join(missing)}"
            )
        return self._partitions(of_split if periods is None else periods)

    def _no_rows(self) -> pl.DataFrame:
        """Return an empty table with the snapshot's columns, whose types are taken from a blob."""
        for partition in self.manifest.partitions[:1]:
            return self._read_blobs(partition.blobs[:1]).clear()
        raise BadDataError(f"snapshot {self.manifest.name} up to {self.manifest.interval_end} holds no rows at all")

    def _read_blobs(self, blobs: Iterable[Blob]) -> pl.DataFrame:
        with ThreadPoolExecutor(_READERS) as threads:
            return pl.concat(
                threads.map(lambda blob: pl.read_parquet(io.BytesIO(self.store.read(blob.artifact))), blobs)
            )

    def _scan_blobs(self, blobs: Iterable[Blob], cache: Path) -> pl.LazyFrame:
        with ThreadPoolExecutor(_READERS) as threads:
            files = list(threads.map(lambda blob: self.store.local_file(blob.artifact, cache), blobs))
        return pl.scan_parquet(files, glob=False)


@dataclass(frozen=True, slots=True)
class _Period:
    """The rows of a split in one period of a snapshot, read in any process."""

    snapshot: Snapshot
    split: str
    period: str

    def __call__(self) -> pl.LazyFrame:
        return self.snapshot.read_split(self.split, [self.period]).lazy()


def write_snapshot(
    store: Store,
    table: Table,
    *,
    name: str,
    window: Window,
    event_time: str,
    sources: Mapping[str, Mapping[str, Any]],
    split: AnySplit | None,
    creator: Mapping[str, Any],
    engine: Engine,
    scratch: Path,
    calendar: AnyCalendar = EVERY_DAY,
    max_blob_bytes: int = MAX_BLOB_BYTES,
) -> Manifest:
    """
    Store a table's rows by period; blobs that the store already has are not written again.

    :param table: the window's rows; more of them than fit in memory are no trouble, as long as each period does
    :param event_time: column of ``table`` with the instants (UTC) that give a row its period
    :param sources: provenance, kept in the manifest as it is
    :param split: the setting ``ingest.split``
    :param creator: the Airflow task that made it; kept in the manifest as it is
    :param scratch: folder for rows that do not fit in memory
    :param calendar: the setting ``ingest.calendar``
    :return: the manifest, which is not stored yet: the caller commits it
    :raises BadDataError: where the last period that the calendar expects has no rows, a split has none, or a column
        cannot be stored
    :raises BadConfigError: where the calendar's holidays are not known
    """
    expected = expected_periods(calendar, window)
    writer = PeriodWriter(store_uri=store.uri, event_time=event_time, split=split, max_blob_bytes=max_blob_bytes)
    stored = write_periods(table, writer, window.periods, scratch=scratch)
    partitions = tuple(each.partition for each in stored)
    check_newest([partition.period for partition in partitions], calendar, expected, window, sources)
    grain = window.periods.grain
    stated = {} if split is None else split.model_dump(mode="json")
    schema = stored[-1].schema
    manifest = Manifest(
        name=name,
        interval_start=window.start.isoformat(),
        interval_end=window.end.isoformat(),
        timezone=window.periods.timezone,
        grain=grain,
        window=tuple(window.names),
        event_time=event_time,
        schema=dict(schema),
        schema_hash=digest_of(schema),
        partitions=partitions,
        split=stated,
        split_hash=digest_of(stated),
        splits=_splits(stored, split, grain),
        calendar=calendar.model_dump(mode="json"),
        expected=tuple(expected),
        sources=sources,
        creator=creator,
        engine=engine,
    )
    num_blobs = sum(len(partition.blobs) for partition in partitions)
    logger.info(
        "snapshot %s: %d rows of %s, %.1f MB in %d blobs; %d blobs and num_new_bytes=%d are new, the rest is "
        "shared with earlier snapshots",
        name, manifest.num_rows, counted(len(partitions), grain), manifest.num_bytes / 1e6, num_blobs,
        sum(each.num_new_blobs for each in stored), sum(each.num_new_bytes for each in stored),
    )  # fmt: skip
    return manifest


def _splits(stored: Sequence[StoredPeriod], split: AnySplit | None, grain: Grain) -> dict[str, SplitPart]:
    if split is None:
        return {}
    if isinstance(split, TimeSplit):
        return _splits_by_time([each.partition for each in stored], split, grain)
    return _splits_by_index(stored)


def _splits_by_time(partitions: Sequence[Partition], split: TimeSplit, grain: Grain) -> dict[str, SplitPart]:
    num_rows = {partition.period: partition.num_rows for partition in partitions}
    return {
        name: SplitPart(periods=tuple(periods), num_rows=sum(num_rows[period] for period in periods))
        for name, periods in periods_of(list(num_rows), split, grain).items()
    }


def _splits_by_index(stored: Sequence[StoredPeriod]) -> dict[str, SplitPart]:
    splits = {
        name: SplitPart(
            periods=tuple(each.partition.period for each in stored if each.split_rows[name]),
            num_rows=sum(each.split_rows[name] for each in stored),
        )
        for name in SPLITS
    }
    if empty := [name for name, part in splits.items() if not part.num_rows]:
        raise BadDataError(
            f"no row is in the split {empty[0]!r}: there are too few rows or keys, or none is named so; change "
            "ingest.split"
        )
    return splits
