"""Features of a flight, for trees: numbers as they are, and categories as ids."""

from __future__ import annotations

import narwhals as nw

from mlops import FeatureSet, Passthrough, Vocabulary

FEATURES = FeatureSet(
    label="arr_delay",
    # A flight that never arrived has no delay.
    where=~nw.col("arr_delay").is_null(),
    order_by=("scheduled_departure", "carrier", "flight", "origin", "dest"),
    derived={"weekday": nw.col("day").dt.weekday()},
    transforms=[
        Passthrough("hour"),
        Passthrough("weekday"),
        Passthrough("distance"),
        Vocabulary("carrier", min_count=50, encoding="id"),
        Vocabulary("origin", encoding="id"),
        Vocabulary("dest", min_count=20, encoding="id"),
        Passthrough("route_delay", missing="indicator"),
        Passthrough("carrier_delay", missing="indicator"),
        Passthrough("hour_delay", missing="indicator"),
        Passthrough("temp", missing="indicator"),
        Passthrough("wind_speed", missing="indicator"),
        Passthrough("precip", missing="indicator"),
        Passthrough("pressure", missing="indicator"),
        Passthrough("visib", missing="indicator"),
    ],
)
