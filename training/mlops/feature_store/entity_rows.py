"""
One night's shards, as rows of entities: memory-mapped, digests checked, nothing copied.

One night's at a time, for all its rows come from one fitted state; rows of two nights are not comparable.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
import polars.selectors as cs
import pyarrow as pa

from mlops.contract.refs import Artifact
from mlops.contract.step import BadDataError
from mlops.store import Store

EVENT_TIME: Final = "event_time"
CREATED: Final = "created"
"""Column with the as-of time of the night whose features these are: when the values became known."""
PLACE: Final = "features_place"
"""
Column with ``FeaturesRef.place`` of the step that made the row. A model fits the rows whose place is in its own ref
chain: rows of another night are scaled by another fitted state.
"""
KEY_PREFIX: Final = "key."
"""Prefix of those columns of a shard that hold the entity."""
_SHARD, _ROW, _ASKED = "__shard", "__row", "__asked"


@dataclass(frozen=True, kw_only=True, slots=True)
class NightlyShards:
    """The result of one features step."""

    manifest: Artifact
    place: str
    as_of: str
    """End of the data interval, ISO 8601, UTC."""


class EntityRows:
    """
    One night's rows of all splits.

    :param store: where the shards lie
    :param cache: folder for shards of a remote store; must stay as long as the rows are in use
    :raises DamagedObjectError: naming the object whose bytes are not those that were written
    """

    def __init__(self, store: Store, night: NightlyShards, cache: Path) -> None:
        manifest = json.loads(store.read(night.manifest))
        self.night = night
        self.feature_names: list[str] = manifest["feature_names"]
        shards = [shard for split in manifest["splits"].values() for shard in split["shards"]]
        batches = [
            _map(store.local_file(Artifact(**{name: s[name] for name in ("key", "sha256", "num_bytes")}), cache))
            for s in shards
        ]
        # An empty split may have no columns but the features.
        self._batches = [batch for batch in batches if batch.num_rows] or batches[:1]
        columns = self._batches[0].schema.names
        self.entity = [name.removeprefix(KEY_PREFIX) for name in columns if name.startswith(KEY_PREFIX)]

    def index(self) -> pl.DataFrame:
        """
        Return the entity's columns, ``event_time`` and where the row lies, sorted by time: an entity's last row counts.
        """
        keys = {f"{KEY_PREFIX}{name}": name for name in self.entity}
        parts = [
            pl.DataFrame(batch.select([*keys, EVENT_TIME]))
            .rename(keys)
            .with_columns(pl.lit(number, pl.UInt32).alias(_SHARD), pl.int_range(pl.len(), dtype=pl.UInt32).alias(_ROW))
            for number, batch in enumerate(self._batches)
        ]
        # One type for all integers, for the type is part of the key: a column that becomes wider stays the same.
        rows = pl.concat(parts).with_columns(
            pl.col(EVENT_TIME).cast(pl.Datetime("us", "UTC")),
            cs.integer().exclude(_SHARD, _ROW).cast(pl.Int64),
            cs.categorical().cast(pl.String),
        )
        for name in [*self.entity, EVENT_TIME]:
            if count := rows[name].null_count():
                raise BadDataError(f"entity column {name!r} is missing in {count} rows; drop them in the dataset")
        return rows.sort(EVENT_TIME, _SHARD, _ROW)

    def latest(self, after: datetime | None, until: datetime) -> pl.DataFrame:
        """Return the index of each entity's newest row with ``after < event_time <= until``."""
        rows = self.index().filter(pl.col(EVENT_TIME) <= until)
        if after is not None:
            rows = rows.filter(pl.col(EVENT_TIME) > after)
        return rows.unique(self.entity, keep="last").sort(_SHARD, _ROW)

    def known(self, asked: pl.DataFrame, time: str, ttl: timedelta | None) -> pl.DataFrame:
        """
        Return, for each row asked for and in that order, the index of its entity's newest row at or before ``time``.

        :return: index columns only; null where nothing was known, or it was older than ``ttl``
        """
        index = self.index()
        return (
            asked.select(*(pl.col(name).cast(index.schema[name]) for name in self.entity), pl.col(time).alias(_ASKED))
            .with_row_index("__order")
            .sort(_ASKED)
            .join_asof(
                index,
                left_on=_ASKED,
                right_on=EVENT_TIME,
                by=self.entity,
                strategy="backward",
                tolerance=ttl,
                coalesce=False,
                check_sortedness=False,
            )
            .sort("__order")
            .select(*self.entity, EVENT_TIME, _SHARD, _ROW)
        )

    def table(self, index: pl.DataFrame, features: Sequence[str]) -> pa.Table:
        """
        Return rows of an index with these features, the bits of the shards.

        :return: the entity's columns, ``event_time``, ``created``, the features; null where the index is
        """
        known = index[_ROW].is_not_null().to_numpy()
        columns = {name: index[name].to_arrow() for name in [*self.entity, EVENT_TIME]}
        created = pa.scalar(datetime.fromisoformat(self.night.as_of), pa.timestamp("us", "UTC"))
        columns[CREATED] = pa.repeat(created, len(known))
        numbers = [self.feature_names.index(name) for name in features if name != PLACE]
        values = self._values(index.filter(pl.col(_ROW).is_not_null()), numbers)
        spread = np.zeros((len(known), len(numbers)), np.float32)
        spread[known] = values
        by_name = {self.feature_names[number]: spread[:, i] for i, number in enumerate(numbers)}
        for name in features:
            filled = np.full(len(known), self.night.place) if name == PLACE else np.ascontiguousarray(by_name[name])
            columns[name] = pa.array(filled, mask=~known)
        return pa.table(columns)

    def _values(self, index: pl.DataFrame, numbers: list[int]) -> npt.NDArray[np.float32]:
        """Gather [rows, features] out of the mapped shards."""
        values = np.empty((index.height, len(numbers)), np.float32)
        shards, rows = index[_SHARD].to_numpy(), index[_ROW].to_numpy()
        for shard in np.unique(shards):
            here = shards == shard
            column = self._batches[shard].column("features")
            matrix = column.flatten().to_numpy(zero_copy_only=True).reshape(-1, column.type.list_size)
            values[here] = matrix[rows[here]][:, numbers]
        return values


def _map(path: Path) -> pa.RecordBatch:
    return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
