"""The section ``features``: the feature set, and where its rows are published."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, model_validator

from mlops.contract.section import ImportPath, Section


class Online(Section):
    """Publish the newest row of each entity in the Feast feature store, to be read when the model is asked."""

    store: Literal["sqlite", "redis"] = "sqlite"
    """``sqlite``: a file below the deployment's store, for one machine; ``redis``: a server, by ``connection``."""
    connection: str | None = None
    """Airflow connection id of the Redis server."""
    ttl_hours: float | None = Field(default=48, gt=0)
    """Time to live: a row whose event is older is no longer served; two days outlast one night that failed. None:
    rows are served however old they are."""

    @property
    def ttl(self) -> timedelta | None:
        return None if self.ttl_hours is None else timedelta(hours=self.ttl_hours)

    @model_validator(mode="after")
    def _connection_of_the_store(self) -> Online:
        if self.store == "redis" and self.connection is None:
            raise ValueError("complete: for store redis name the Airflow connection, e.g. connection: redis_online")
        if self.store == "sqlite" and self.connection is not None:
            raise ValueError("consistent: a connection goes with store: redis; SQLite is a file and needs none")
        return self


class Features(Section):
    """Fit the feature set on the training split; store shards that are ready to train on."""

    feature_set: ImportPath
    """A ``FeatureSet``, or for text a ``TokenSet``, e.g. ``include.flights.features:FEATURES``; its recipe's folder is
    stored with the features."""
    sample: float | None = Field(default=None, gt=0, le=1)
    """Share of the samples to train on that is stored, drawn by a hash of each: for a quick look at a large table. The
    features are fitted on all of them, and validation and test stay whole, so that metrics can be compared. None: all.
    """
    online: Online | None = None
    """Where the features are published for serving; None: nowhere. Needs ``FeatureSet.entity``."""
