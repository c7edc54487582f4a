from __future__ import annotations

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal

import polars as pl
import pytest

from mlops.contract.step import BadDataError
from mlops.validation.rows import as_described
from mlops.validation.statistics import (
    GENERATOR,
    NUM_RANKED_VALUES,
    NUM_TOP_VALUES,
    REFERENCE_BINS,
    FeatureType,
    dataset_statistics,
    generator,
)


def describe(values: pl.Series):
    return dataset_statistics(values.alias("x").to_frame(), "window").features[0]


def test_columns_of_any_type_are_described_by_a_number():
    """Broken: the first night of a table that ``mlops init`` has taken stops, for prices are decimals there."""
    columns = pl.DataFrame(
        [
            pl.Series("price", [Decimal("1.50"), None, Decimal("2.25")], pl.Decimal(10, 2)),
            pl.Series("opens", [time(9, 30), None, time(0)], pl.Time),
            pl.Series("tags", [["a", "b"], None, []], pl.List(pl.String)),
            pl.Series("pair", [["a", "b"], None, ["c", "d"]], pl.Array(pl.String, 2)),
            pl.Series("place", [{"x": 1}, None, {"x": None}], pl.Struct({"x": pl.Int64})),
            pl.Series("vector", [[3.0, 4.0], None, [0.0, 0.0]], pl.Array(pl.Float32, 2)),
            pl.Series("nested", [[[1]], None, []], pl.List(pl.List(pl.Int64))),
            pl.Series("bytes", [b"abc", None, b""], pl.Binary),
        ]
    )
    found = as_described(columns.lazy()).collect()
    assert found.to_dict(as_series=False) == {
        "price": [1.5, None, 2.25], "opens": [34200, None, 0], "tags": [2, None, 0], "pair": [2, None, 2],
        "place": [1, None, 1], "vector": [5.0, None, 0.0], "nested": [1, None, 0], "bytes": [3, None, 0],
    }  # fmt: skip
    statistics = dataset_statistics(found, "window")
    assert {each.num_stats.common_stats.num_missing for each in statistics.features} == {1}


def test_numbers_are_described_without_their_missing_values():
    """A wrong share of missing values, mean or median would let bad data pass."""
    stats = describe(pl.Series([1, None, 3, 0, 4])).num_stats
    assert (stats.common_stats.num_missing, stats.common_stats.num_non_missing) == (1, 4)
    assert (stats.min, stats.median, stats.max, stats.mean, stats.num_zeros) == (0, 2, 4, 2, 1)
    assert stats.std_dev == pytest.approx(math.sqrt(2.5))  # population, as TFDV has it


def test_nan_is_counted_and_does_not_hide_the_range():
    """One NaN would make every other statistic NaN, and the range check blind."""
    stats = describe(pl.Series([1.0, math.nan, -5.0, None])).num_stats
    assert (stats.min, stats.max) == (-5, 1)
    assert {histogram.num_nan for histogram in stats.histograms} == {1}
    assert stats.common_stats.num_missing == 1


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([float(value) for value in range(101)], id="spread"),
        pytest.param([2.5] * 7, id="constant"),
        pytest.param([1e308, -1e308, 0.0], id="huge"),
        pytest.param([0.1, 0.1 + 1e-17, 0.3], id="near"),
    ],
)
def test_histograms_hold_every_value_once(values):
    stats = describe(pl.Series(values)).num_stats
    *tfdvs, bins = stats.histograms
    for histogram in stats.histograms:
        assert sum(bucket.sample_count for bucket in histogram.buckets) == pytest.approx(len(values))
        assert histogram.buckets[-1].high_value == max(values)
    assert [histogram.buckets[0].low_value for histogram in tfdvs] == [min(values)] * 2
    # The bins that other data is counted in are closed above only.
    assert bins.name == REFERENCE_BINS
    assert bins.buckets[0].low_value == math.nextafter(min(values), -math.inf)


def test_infinite_values_stay_out_of_the_equal_widths():
    """An infinite bucket has no width: the report could not draw it."""
    stats = describe(pl.Series([1.0, 2.0, math.inf])).num_stats
    assert stats.max == math.inf
    assert sum(bucket.sample_count for bucket in stats.histograms[0].buckets) == 2


def test_few_integers_get_a_bucket_each():
    stats = describe(pl.Series([1, 2, 2, 3, 4, 5, 6, 7])).num_stats
    assert [bucket.sample_count for bucket in stats.histograms[0].buckets] == [1, 2, 1, 1, 1, 1, 1]


def test_strings_are_ranked_by_count_then_by_value():
    """Equal data in another order must give equal bytes."""
    values = ["b", "a", "c", None, "c"]
    feature = describe(pl.Series(values))
    assert [(value.value, value.frequency) for value in feature.string_stats.top_values] == [
        ("c", 2),
        ("a", 1),
        ("b", 1),
    ]
    assert feature.string_stats.unique == 3
    assert feature == describe(pl.Series(values[::-1]))


def test_the_validator_sees_rare_strings():
    """It looks for unexpected values among the ranked ones only."""
    stats = describe(pl.Series([f"v{value:05}" for value in range(3_000)])).string_stats
    assert len(stats.rank_histogram.buckets) == 3_000 <= NUM_RANKED_VALUES
    assert len(stats.top_values) == NUM_TOP_VALUES


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        pytest.param([datetime(2013, 2, 9, 1, 2, 3, tzinfo=UTC)], 1360371723, id="instant"),
        pytest.param([date(1970, 1, 2)], 86_400, id="date"),
        pytest.param([True], 1, id="boolean"),
    ],
)
def test_instants_and_booleans_are_integers(values, seconds):
    feature = describe(pl.Series(values))
    assert (feature.type, feature.num_stats.max) == (FeatureType.INT, seconds)


@pytest.mark.parametrize("dtype", [pl.Float64, pl.Int64, pl.String], ids=str)
def test_a_column_without_values_keeps_its_type(dtype):
    feature = describe(pl.Series([None, None], dtype=dtype))
    stats = feature.string_stats if dtype == pl.String else feature.num_stats
    assert stats.common_stats.num_missing == 2
    assert stats.common_stats.max_num_values == 0


def test_a_type_that_cannot_be_described_names_the_column():
    with pytest.raises(BadDataError, match=r"column 'x' has the type List\(Int64\).*cast it"):
        describe(pl.Series([[1, 2]]))


def test_statistics_say_what_made_them():
    """Those of two generators must never be held against each other."""
    statistics = dataset_statistics(pl.DataFrame({"x": [1], "y": ["a"]}), "window")
    assert generator(statistics) == GENERATOR
    statistics.features[0].custom_stats[0].str = "tfdv"
    assert generator(statistics) == "unknown"
    del statistics.features[:]
    assert generator(statistics) == "unknown"
