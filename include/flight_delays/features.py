"""Features of a flight, for the chance that it arrives late."""

from __future__ import annotations

import narwhals as nw

from mlops import Bucketise, FeatureSet, Passthrough, Standardise, Vocabulary

FEATURES = FeatureSet(
    label="delayed",
    outcomes=("arr_delay",),
    # A flight that never arrived was neither on time nor late.
    where=~nw.col("delayed").is_null(),
    order_by=("scheduled_departure", "carrier", "flight", "origin", "dest"),
    derived={
        "rain": nw.col("precip") > 0,
    },
    transforms=[
        Bucketise("hour", buckets=8),
        Standardise("hour"),
        Standardise("distance"),
        Vocabulary("carrier", min_count=50),
        Vocabulary("origin"),
        Standardise("route_late", missing="indicator"),
        Standardise("carrier_late", missing="indicator"),
        Standardise("hour_late", missing="indicator"),
        Standardise("temp", missing="indicator"),
        Standardise("wind_speed", missing="indicator"),
        Standardise("visib", missing="indicator"),
        Passthrough("rain", missing="indicator"),
    ],
)
