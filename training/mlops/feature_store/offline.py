"""
Feast's offline store on the features step's own shards: the interfaces that Feast needs of a source and of its store.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import polars as pl
import pyarrow as pa
from feast import FeatureView, RepoConfig, ValueType
from feast.data_source import DataSource
from feast.infra.offline_stores.offline_store import OfflineStore, RetrievalJob
from feast.infra.offline_stores.offline_utils import infer_event_timestamp_from_entity_df
from feast.infra.registry.base_registry import BaseRegistry
from feast.on_demand_feature_view import OnDemandFeatureView
from feast.protos.feast.core.DataSource_pb2 import DataSource as DataSourceProto
from feast.repo_config import FeastConfigBaseModel

from mlops.contract.refs import Artifact
from mlops.contract.step import BadDataError, scratch_parent
from mlops.feature_store.entity_rows import CREATED, EVENT_TIME, EntityRows, NightlyShards
from mlops.store import Store


class ShardsSource(DataSource):
    """The shards of all splits of one night."""

    def __init__(self, name: str, night: NightlyShards) -> None:
        super().__init__(name=name, timestamp_field=EVENT_TIME, created_timestamp_column=CREATED)
        self.night = night

    @staticmethod
    def from_proto(data_source: DataSourceProto) -> ShardsSource:
        night = json.loads(data_source.custom_options.configuration)
        return ShardsSource(data_source.name, NightlyShards(**{**night, "manifest": Artifact(**night["manifest"])}))

    def _to_proto_impl(self) -> DataSourceProto:
        return DataSourceProto(
            name=self.name,
            type=DataSourceProto.CUSTOM_SOURCE,
            # Registries hold this path: a class that moves leaves them unreadable.
            data_source_class_type="mlops.feature_store.offline.ShardsSource",
            timestamp_field=self.timestamp_field,
            created_timestamp_column=self.created_timestamp_column,
            custom_options=DataSourceProto.CustomSourceOptions(configuration=json.dumps(asdict(self.night)).encode()),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardsSource) and super().__eq__(other) and self.night == other.night

    def __hash__(self) -> int:
        return hash((self.name, self.night.place))

    def source_type(self) -> DataSourceProto.SourceType.ValueType:
        return DataSourceProto.CUSTOM_SOURCE

    def validate(self, config: RepoConfig) -> None:
        """Do nothing: the manifest's digest is checked when it is read."""

    @staticmethod
    def source_datatype_to_feast_value_type() -> Callable[[str], ValueType]:
        raise NotImplementedError("a published view says its types itself")


class ShardsOfflineStoreConfig(FeastConfigBaseModel):
    type: Literal["mlops.feature_store.offline.ShardsOfflineStore"]
    store: str
    """URI of the object store."""


class ShardsOfflineStore(OfflineStore):
    """
    Feast's offline store. Feast calls ``pull_latest...`` to materialise, ``get_historical_features`` for point-in-time
    joins.
    """

    @staticmethod
    def pull_latest_from_table_or_query(
        config: RepoConfig,
        data_source: DataSource,
        join_key_columns: list[str],
        feature_name_columns: list[str],
        timestamp_field: str,
        created_timestamp_column: str | None,
        start_date: datetime,
        end_date: datetime,
    ) -> RetrievalJob:
        def latest(rows: EntityRows) -> pa.Table:
            return rows.table(rows.latest(start_date, end_date), feature_name_columns)

        return ShardsJob(config, _night(data_source), latest)

    @staticmethod
    def pull_all_from_table_or_query(
        config: RepoConfig,
        data_source: DataSource,
        join_key_columns: list[str],
        feature_name_columns: list[str],
        timestamp_field: str,
        created_timestamp_column: str | None = None,
        start_date: datetime | None = None,
        end_date: datetime | None = None,
    ) -> RetrievalJob:
        def between(rows: EntityRows) -> pa.Table:
            index = rows.index()
            if start_date is not None:
                index = index.filter(pl.col(EVENT_TIME) >= start_date)
            if end_date is not None:
                index = index.filter(pl.col(EVENT_TIME) <= end_date)
            return rows.table(index, feature_name_columns)

        return ShardsJob(config, _night(data_source), between)

    @staticmethod
    def get_historical_features(
        config: RepoConfig,
        feature_views: list[FeatureView],
        feature_refs: list[str],
        entity_df: pd.DataFrame | str | None,
        registry: BaseRegistry,
        project: str,
        full_feature_names: bool = False,
    ) -> RetrievalJob:
        """
        Join to each row of ``entity_df`` its entity's features as last known at or before the row's own time.

        :param entity_df: the entity's columns and ``event_timestamp``
        :raises BadDataError: where a column of the entity is missing
        """
        if not isinstance(entity_df, pd.DataFrame):
            raise BadDataError("historical features need a pandas DataFrame with the entity's columns and their times")
        [view] = feature_views  # one project is one pipeline, whose features are one view
        names = [ref.removeprefix(f"{view.projection.name_to_use()}:") for ref in feature_refs]
        time = infer_event_timestamp_from_entity_df(dict(entity_df.dtypes))

        def joined(rows: EntityRows) -> pa.Table:
            if missing := [name for name in rows.entity if name not in entity_df.columns]:
                raise BadDataError(f"entity_df has no column {missing[0]!r}; the entity is {', '.join(rows.entity)}")
            asked = pl.from_pandas(entity_df).with_columns(pl.col(time).cast(pl.Datetime("us", "UTC")))
            found = rows.table(rows.known(asked, time, view.ttl or None), names)
            table = pa.Table.from_pandas(entity_df, preserve_index=False)
            for name in names:
                said = f"{view.projection.name_to_use()}__{name}" if full_feature_names else name
                table = table.append_column(said, found.column(name))
            return table

        return ShardsJob(config, _night(view.batch_source), joined, full_feature_names=full_feature_names)


def _night(source: DataSource | None) -> NightlyShards:
    assert isinstance(source, ShardsSource), f"a published view's source is its shards, not {source}"
    return source.night


class ShardsJob(RetrievalJob):
    """A retrieval job that reads the shards when it is asked for its table."""

    def __init__(
        self,
        config: RepoConfig,
        night: NightlyShards,
        read: Callable[[EntityRows], pa.Table],
        *,
        full_feature_names: bool = False,
    ) -> None:
        self._store = Store(config.offline_store.store)
        self._night = night
        self._read = read
        self._full_feature_names = full_feature_names

    def _to_arrow_internal(self, timeout: int | None = None) -> pa.Table:
        with tempfile.TemporaryDirectory(prefix="shards-", dir=scratch_parent()) as cache:
            return self._read(EntityRows(self._store, self._night, Path(cache)))

    def _to_df_internal(self, timeout: int | None = None) -> pd.DataFrame:
        return self._to_arrow_internal().to_pandas()

    @property
    def full_feature_names(self) -> bool:
        return self._full_feature_names

    @property
    def on_demand_feature_views(self) -> list[OnDemandFeatureView]:
        return []

    @property
    def metadata(self) -> Any:
        return None
