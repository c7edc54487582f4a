"""
Statistics of a table as TFDV's protos, computed by Polars.

TFDV's validator reads nothing but these protos, so its own generator (Beam, TensorFlow, pandas) is not needed. The
field meanings are those of tensorflow_metadata/proto/v0/statistics.proto. Statistics say which generator made them:
those of two generators are never compared, for their quantiles and bins differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import polars as pl
from tensorflow_metadata.proto.v0 import statistics_pb2

from mlops.contract.step import BadDataError
from mlops.validation.bins import NUM_QUANTILES, Numbers, counts, quantiles, reference_edges

GENERATOR: Final = "airflow-provider-mlops/2"
"""Name and version of the generator, written into the statistics. Count it up when a value changes its meaning."""
REFERENCE_BINS: Final = "reference_bins"
"""Name of the histogram whose edges other data is counted in."""
_GENERATOR_STATISTIC: Final = "generator"
COUNT: Final = "number of rows"
"""Name of the column of counts beside one of values; with spaces, so that no column of the data has it."""
NUM_BUCKETS: Final = 10
NUM_TOP_VALUES: Final = 20
NUM_RANKED_VALUES: Final = 10_000
"""
Number of strings that are ranked. The validator looks for unexpected strings among them only: rarer ones would pass
unseen.
"""

FeatureType = statistics_pb2.FeatureNameStatistics.Type


def dataset_statistics(frame: pl.DataFrame, name: str) -> statistics_pb2.DatasetFeatureStatistics:
    """
    Describe every column.

    :param frame: integers, floats, booleans (as 0 and 1), strings, and instants (as whole seconds since 1970 UTC)
    :param name: says which rows they are, e.g. ``window`` or ``2013-02-09``
    :raises BadDataError: for a column of another type
    """
    dataset = statistics_pb2.DatasetFeatureStatistics(name=name, num_examples=frame.height)
    dataset.features.extend(describe_column(column)[0] for column in frame.iter_columns())
    return dataset


def describe_column(column: pl.Series) -> tuple[statistics_pb2.FeatureNameStatistics, Numbers | None]:
    """
    Describe one column.

    :return: TFDV's proto; and the sorted numbers that it was computed from, None for a column of strings
    :raises BadDataError: for a type that validation does not know
    """
    if feature_type(column.name, column.dtype) == FeatureType.STRING:
        return describe_strings(column.name, column.cast(pl.String).value_counts(name=COUNT)), None
    feature = _feature(column.name, feature_type(column.name, column.dtype))
    numbers = Numbers.of(as_number(column))
    _describe_presence(feature.num_stats.common_stats, column.len(), column.null_count())
    _describe_numbers(numbers, feature.num_stats, is_integer=feature.type == FeatureType.INT)
    return feature, numbers


def describe_strings(name: str, counts: pl.DataFrame) -> statistics_pb2.FeatureNameStatistics:
    """
    Describe a column of strings.

    :param counts: the column's values, each once, null too, and their numbers of occurrences
    """
    feature = _feature(name, FeatureType.STRING)
    stats = feature.string_stats
    missing = counts.filter(pl.nth(0).is_null()).select(pl.nth(1).sum()).item()
    _describe_presence(stats.common_stats, counts.select(pl.nth(1).sum()).item(), missing)
    ranked = in_rank(counts)
    if ranked.is_empty():
        return feature
    stats.unique = ranked.height
    num_bytes = ranked.select((pl.nth(0).str.len_bytes().cast(pl.Int64) * pl.nth(1)).sum()).item()
    stats.avg_length = num_bytes / stats.common_stats.num_non_missing
    for rank, (value, count) in enumerate(ranked.head(NUM_RANKED_VALUES).iter_rows()):
        stats.rank_histogram.buckets.add(low_rank=rank, high_rank=rank, label=value, sample_count=count)
        if rank < NUM_TOP_VALUES:
            stats.top_values.add(value=value, frequency=count)
    return feature


def in_rank(counts: pl.DataFrame) -> pl.DataFrame:
    """Return the values except null, the most frequent first; ties by value, so that equal data ranks equally."""
    return counts.filter(pl.nth(0).is_not_null()).sort(pl.nth(1), pl.nth(0), descending=[True, False])


def generator(statistics: statistics_pb2.DatasetFeatureStatistics) -> str:
    """Return the name of the generator of the statistics: :data:`GENERATOR` for ours."""
    stated = {
        stat.str
        for feature in statistics.features
        for stat in feature.custom_stats
        if stat.name == _GENERATOR_STATISTIC
    }
    return stated.pop() if len(stated) == 1 else "unknown"


def num_without_value(feature: statistics_pb2.FeatureNameStatistics) -> int:
    """Return the number of rows with neither a string nor a number: NaN is a value to TFDV, and none to a model."""
    if feature.HasField("string_stats"):
        return int(feature.string_stats.common_stats.num_missing)
    nans = max((histogram.num_nan for histogram in feature.num_stats.histograms), default=0)
    return int(feature.num_stats.common_stats.num_missing + nans)


def reference_bins(stats: statistics_pb2.NumericStatistics) -> statistics_pb2.Histogram:
    """Return the bins that other data is to be counted in; see :func:`mlops.validation.bins.reference_edges`."""
    return next(histogram for histogram in stats.histograms if histogram.name == REFERENCE_BINS)


def feature_type(name: str, dtype: pl.DataType) -> int:
    """
    Return TFDV's type (a value of its enum) for a Polars type.

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
    """Convert instants and durations to whole seconds (since 1970 UTC), booleans to 0 and 1."""
    if column.dtype == pl.Duration:
        return column.dt.total_seconds()
    if column.dtype.is_temporal():
        return column.dt.epoch("s")
    return column.cast(pl.Int64) if column.dtype == pl.Boolean else column


def _feature(name: str, kind: int) -> statistics_pb2.FeatureNameStatistics:
    feature = statistics_pb2.FeatureNameStatistics(type=kind)
    feature.path.step.append(name)
    feature.custom_stats.add(name=_GENERATOR_STATISTIC, str=GENERATOR)
    return feature


def _describe_presence(common: statistics_pb2.CommonStatistics, num_rows: int, num_missing: int) -> None:
    common.num_missing = num_missing
    common.num_non_missing = num_rows - num_missing
    if not common.num_non_missing:
        return
    # Flat tables: a cell holds one value or none.
    common.min_num_values = common.max_num_values = 1
    common.avg_num_values = 1.0
    common.tot_num_values = common.num_non_missing


def _describe_numbers(numbers: Numbers, stats: statistics_pb2.NumericStatistics, *, is_integer: bool) -> None:
    values = numbers.ordered
    if not values.is_empty():
        stats.mean = _finite_or_nan(values.mean())
        stats.std_dev = _finite_or_nan(values.std(ddof=0))
        stats.num_zeros = numbers.up_to([0.0])[0] - numbers.below([0.0])[0]
        stats.min, stats.median, stats.max = float(values[0]), float(values.median()), float(values[-1])  # type: ignore[arg-type]
    edges = quantiles(values)
    share = values.len() / NUM_QUANTILES
    stats.histograms.extend(
        [
            _equal_widths(numbers, is_integer=is_integer),
            _histogram(statistics_pb2.Histogram.QUANTILES, numbers, edges, [share] * (len(edges) - 1)),
        ]
    )
    edges = reference_edges(numbers)
    bins = _histogram(statistics_pb2.Histogram.QUANTILES, numbers, edges, counts(numbers, edges)[1:-1])
    bins.name = REFERENCE_BINS
    stats.histograms.append(bins)


def _equal_widths(numbers: Numbers, *, is_integer: bool) -> statistics_pb2.Histogram:
    """Return a histogram of equal widths between the smallest and the largest finite value."""
    standard = statistics_pb2.Histogram.STANDARD
    infinite, (end,) = numbers.up_to([-math.inf])[0], numbers.below([math.inf])
    if infinite == end:
        return _histogram(standard, numbers, [], [])
    low, high = float(numbers.ordered[infinite]), float(numbers.ordered[end - 1])
    if low == high:
        return _histogram(standard, numbers, [low, high], [end - infinite])
    # A bucket per value where integers have few: with ten of them seven weekdays would show gaps.
    num_buckets = min(NUM_BUCKETS, int(high - low) + 1) if is_integer else NUM_BUCKETS
    # Divided first: high - low of two huge values may be infinite.
    width = high / num_buckets - low / num_buckets
    inner = [low + step * width for step in range(1, num_buckets)]
    positions = [infinite, *numbers.below(inner), end]
    return _histogram(standard, numbers, [low, *inner, high], [after - before for before, after in pairwise(positions)])


def _histogram(
    kind: statistics_pb2.Histogram.HistogramType, numbers: Numbers, edges: Sequence[float], sizes: Sequence[float]
) -> statistics_pb2.Histogram:
    histogram = statistics_pb2.Histogram(num_nan=numbers.num_nan, type=kind)
    for (low, high), size in zip(pairwise(edges), sizes, strict=True):
        histogram.buckets.add(low_value=low, high_value=high, sample_count=size)
    return histogram


def _finite_or_nan(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
