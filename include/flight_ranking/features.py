"""Features of the flights of one route and day, to be ranked against each other."""

from __future__ import annotations

import narwhals as nw

from mlops import Bucketise, FeatureSet, Hash, Passthrough, Standardise, Vocabulary

from .dataset import HISTORIES

QUERY = ("origin", "dest", "day")
RATES = [f"{history}_{rate}" for history in HISTORIES for rate in ("on_time", "cancelled")]
DELAYS = [f"{history}_mean_delay" for history in HISTORIES]

FEATURES = FeatureSet(
    label="relevance",
    outcomes=("arr_delay", "dep_delay", "cancelled"),
    group_by=QUERY,
    min_group_size=2,  # a single flight leaves nothing to rank
    order_by=("scheduled_departure", "carrier", "flight"),
    entity=("carrier", "flight", "origin", "dest"),
    derived={
        "minute": nw.col("scheduled_departure").dt.minute(),
        "arrival_hour": nw.col("scheduled_arrival") // 100,
        "weekend": nw.col("weekday") >= 6,
        "age": (nw.col("day").dt.year() - nw.col("built")).clip(0, 40),
        # Ranks are exact, unlike means over a group, whose last bits follow from how the group is summed.
        "departure_rank": nw.col("scheduled_departure").rank("min").over(*QUERY),
        "choices": nw.len().over(*QUERY),
        **{
            f"{column}_rank": nw.col(column).fill_null(0).rank("min").over(*QUERY) / nw.len().over(*QUERY)
            for column in DELAYS
        },
        "history": nw.col("flight_flights").clip(0, 28) / 28,
    },
    transforms=[
        Bucketise("hour", buckets=8),
        Standardise("hour"),
        Standardise("minute"),
        Standardise("arrival_hour"),
        Standardise("departure_rank"),
        Standardise("choices"),
        Standardise("distance"),
        Standardise("age", missing="indicator"),
        Standardise("seats", missing="indicator"),
        Passthrough("weekend"),
        Passthrough("history"),
        *(Passthrough(f"{column}_rank") for column in DELAYS),
        Vocabulary("carrier", min_count=50),
        Vocabulary("origin"),
        Hash("maker", buckets=8, missing="indicator"),
        *(Standardise(column, missing="indicator") for column in RATES + DELAYS),
        *(Standardise(column, missing="indicator") for column in ("temp", "humid", "wind_speed", "pressure", "visib")),
        # A gust is reported only where there is one.
        Standardise("wind_gust", missing=0.0),
        Standardise("precip", missing="indicator"),
    ],
)
