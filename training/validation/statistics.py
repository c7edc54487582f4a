"""
Statistics of a table as TFDV's protos, computed by Polars.

TFDV's validator reads nothing but these protos, so its own generator (Beam, TensorFlow, pandas) is not needed. The
field meanings are those of tensorflow_metadata/proto/v0/statistics.proto. Never hold statistics of two generators
against each other: quantile algorithms differ.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

import polars as pl
from tensorflow_metadata.proto.v0 import statistics_pb2

from mlops_provider.step import BadDataError

NUM_BUCKETS: Final = 10
NUM_TOP_VALUES: Final = 20
NUM_RANKED_VALUES: Final = 10_000
"""The validator looks for unexpected strings among the ranked values only: rarer ones would pass unseen."""

FeatureType = statistics_pb2.FeatureNameStatistics.Type


def dataset_statistics(frame: pl.DataFrame, name: str) -> statistics_pb2.DatasetFeatureStatistics:
    """
    Describe every column.

    :param frame: integers, floats, booleans (as 0 and 1), strings, and instants (as whole seconds since 1970 UTC)
    :param name: says which rows they are, e.g. ``window`` or ``2013-02-09``
    :raises BadDataError: for a column of another type
    """
    dataset = statistics_pb2.DatasetFeatureStatistics(name=name, num_examples=frame.height)
    for column in frame.iter_columns():
        feature = dataset.features.add(type=feature_type(column.name, column.dtype))
        feature.path.step.append(column.name)
        if feature.type == FeatureType.STRING:
            _describe_strings(column, feature.string_stats)
        else:
            _describe_numbers(as_number(column), feature.num_stats)
    return dataset


def feature_type(name: str, dtype: pl.DataType) -> int:
    """
    TFDV's type (a value of its enum) for a Polars type.

    :raises BadDataError: where it has none
    """
    if dtype.is_float():
        return int(FeatureType.FLOAT)
    if dtype.is_integer() or dtype == pl.Boolean or (dtype.is_temporal() and dtype != pl.Time):
        return int(FeatureType.INT)
    if dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        return int(FeatureType.STRING)
    raise BadDataError(
        f"column {name!r} has the type {dtype}, which validation cannot describe; "
        "cast it to a number, a boolean, a string, a date or an instant in the ingest transform"
    )


def as_number(column: pl.Series) -> pl.Series:
    """Instants as whole seconds since 1970 UTC, durations as whole seconds, booleans as 0 and 1."""
    if column.dtype == pl.Duration:
        return column.dt.total_seconds()
    if column.dtype.is_temporal():
        return column.dt.epoch("s")
    return column.cast(pl.Int64) if column.dtype == pl.Boolean else column


def _describe_presence(column: pl.Series, common: statistics_pb2.CommonStatistics) -> None:
    common.num_missing = column.null_count()
    common.num_non_missing = column.len() - column.null_count()
    if not common.num_non_missing:
        return
    # Flat tables: a cell holds one value or none.
    common.min_num_values = common.max_num_values = 1
    common.avg_num_values = 1.0
    common.tot_num_values = common.num_non_missing


def _describe_numbers(column: pl.Series, stats: statistics_pb2.NumericStatistics) -> None:
    _describe_presence(column, stats.common_stats)
    values = column.drop_nulls()
    num_nan = int(values.is_nan().sum()) if values.dtype.is_float() else 0
    values = values.drop_nans() if num_nan else values
    if not values.is_empty():
        # Over float64: the sum of squares of 64-bit integers would overflow.
        floats = values.cast(pl.Float64)
        stats.mean = _finite_or_nan(floats.mean())
        stats.std_dev = _finite_or_nan(floats.std(ddof=0))
        stats.num_zeros = int((floats == 0).sum())
        stats.min, stats.median, stats.max = float(floats.min()), float(floats.median()), float(floats.max())  # type: ignore[arg-type]
    stats.histograms.extend([_equal_widths(values, num_nan), _quantiles(values, num_nan)])


def _equal_widths(values: pl.Series, num_nan: int) -> statistics_pb2.Histogram:
    """Histogram of equal widths between the smallest and the largest finite value."""
    histogram = statistics_pb2.Histogram(num_nan=num_nan, type=statistics_pb2.Histogram.STANDARD)
    floats = values.cast(pl.Float64)
    floats = floats.filter(floats.is_finite())
    if floats.is_empty():
        return histogram
    low, high = float(floats.min()), float(floats.max())  # type: ignore[arg-type]
    if low == high:
        histogram.buckets.add(low_value=low, high_value=high, sample_count=floats.len())
        return histogram
    # A bucket per value where integers have few: with ten of them seven weekdays would show gaps.
    num_buckets = min(NUM_BUCKETS, int(high - low) + 1) if values.dtype.is_integer() else NUM_BUCKETS
    # Divided first: high - low of two huge values may be infinite.
    width = high / num_buckets - low / num_buckets
    edges = [low + step * width for step in range(num_buckets)] + [high]
    position = (floats / width - low / width).floor().clip(0, num_buckets - 1).cast(pl.Int64)
    counts = dict(position.value_counts().iter_rows())
    for step in range(num_buckets):
        histogram.buckets.add(low_value=edges[step], high_value=edges[step + 1], sample_count=counts.get(step, 0))
    return histogram


def _quantiles(values: pl.Series, num_nan: int) -> statistics_pb2.Histogram:
    """Histogram of equal counts: its edges are the deciles."""
    histogram = statistics_pb2.Histogram(num_nan=num_nan, type=statistics_pb2.Histogram.QUANTILES)
    if values.is_empty():
        return histogram
    ordered = values.cast(pl.Float64).sort()
    last = ordered.len() - 1
    edges = [float(ordered[round(step * last / NUM_BUCKETS)]) for step in range(NUM_BUCKETS + 1)]
    for low, high in pairwise(edges):
        histogram.buckets.add(low_value=low, high_value=high, sample_count=values.len() / NUM_BUCKETS)
    return histogram


def _describe_strings(column: pl.Series, stats: statistics_pb2.StringStatistics) -> None:
    _describe_presence(column, stats.common_stats)
    values = column.cast(pl.String).drop_nulls()
    if values.is_empty():
        return
    counts = ranked_values(values)
    stats.unique = counts.height
    stats.avg_length = float(values.str.len_bytes().mean())  # type: ignore[arg-type]
    for rank, (value, count) in enumerate(counts.head(NUM_RANKED_VALUES).iter_rows()):
        stats.rank_histogram.buckets.add(low_rank=rank, high_rank=rank, label=value, sample_count=count)
        if rank < NUM_TOP_VALUES:
            stats.top_values.add(value=value, frequency=count)


def ranked_values(values: pl.Series) -> pl.DataFrame:
    """Distinct values and their counts, the most frequent first; ties by value, so that equal data ranks equally."""
    name = values.name
    return values.value_counts(name="count" if name != "count" else "rows").sort(
        pl.nth(1), pl.nth(0), descending=[True, False]
    )


def _finite_or_nan(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
