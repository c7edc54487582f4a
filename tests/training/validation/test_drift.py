"""Distances between distributions: the formulas are TFDV's, the bins are not."""

from __future__ import annotations

import math
import random

import polars as pl
import pytest
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from mlops.contract.sections.validate import Drift
from mlops.validation.anomalies import ColumnDistance
from mlops.validation.bins import Numbers, counts, is_point, reference_edges
from mlops.validation.drift import column_distance
from mlops.validation.statistics import dataset_statistics, describe_column
from mlops.validation.validator import validate_statistics

CONFIG = Drift(numbers=0.1, values=0.1, columns={})


def distance(reference: pl.Series, found: pl.Series, config: Drift = CONFIG) -> ColumnDistance:
    feature, numbers = describe_column(found.alias("x"))
    result = column_distance(describe_column(reference.alias("x"))[0], feature, numbers, config, ("before", "now"))
    assert result is not None
    return result


def tfdv_distance(reference: pl.Series, found: pl.Series, comparator: str) -> float:
    """As TFDV measures it, on our statistics."""
    schema = schema_pb2.Schema()
    feature = schema.feature.add(name="x", type=schema_pb2.FLOAT if found.dtype.is_float() else schema_pb2.BYTES)
    getattr(feature.drift_comparator, comparator).threshold = 0
    before, now = (dataset_statistics(values.alias("x").to_frame(), "x") for values in (reference, found))
    (measured,) = validate_statistics(now, schema, previous=before).drift_skew_info
    return float(measured.drift_measurements[0].value)


def heavy(seed: int, scale: float = 1.0) -> pl.Series:
    """Delays: most are small, a few very large."""
    rng = random.Random(seed)
    return pl.Series([scale * rng.paretovariate(0.7) for _ in range(5_000)])


def test_l_infinity_of_strings_is_tfdvs():
    before, now = pl.Series(["a", "b"] * 500 + ["c"] * 100), pl.Series(["a"] * 700 + ["b"] * 200 + ["d"] * 9)
    assert distance(before, now).distance == pytest.approx(tfdv_distance(before, now, "infinity_norm"), abs=1e-6)


def test_jensen_shannon_is_tfdvs_where_the_bins_are_the_same():
    """TFDV draws its bins of equal widths over both; here each of ours holds as many of its."""
    before, now = (
        pl.Series([float(value) for value in range(10) for _ in range(weight[value])])
        for weight in ([30, 5, 9, 70, 20, 11, 40, 8, 6, 3], [10, 25, 9, 40, 50, 11, 20, 18, 2, 7])
    )
    assert distance(before, now).distance == pytest.approx(
        tfdv_distance(before, now, "jensen_shannon_divergence"), abs=1e-6
    )


def test_nothing_in_common_is_1_and_equal_is_0():
    before, now = pl.Series([1.0] * 100), pl.Series([2.0] * 100)
    assert distance(before, now).distance == pytest.approx(1)
    assert distance(before, before).distance == 0
    assert distance(pl.Series(["a"] * 9), pl.Series(["b"] * 9)).distance == 1


def test_a_heavy_tail_hides_no_change_and_shows_none_that_is_not_there():
    """TFDV's bins of equal widths hold nearly all rows in one: chance outweighs a real change."""
    before, again, changed = heavy(1), heavy(2), heavy(3, scale=2.0)
    ours = distance(before, changed).distance / distance(before, again).distance
    theirs = tfdv_distance(before, changed, "jensen_shannon_divergence") / tfdv_distance(
        before, again, "jensen_shannon_divergence"
    )
    assert ours > 20 * theirs
    assert distance(before, changed, Drift(numbers=0.05, values=1, columns={})).distance > 0.05


def test_numbers_are_never_compared_by_l_infinity():
    """TFDV's L-infinity of numbers is 0 whatever they are: such a check would pass everything."""
    assert distance(pl.Series([1, 2]), pl.Series([8, 9])).measure == "Jensen-Shannon divergence"


def test_few_integers_have_a_bin_each():
    """Deciles of seven weekdays would put several into one bin, and a Monday could become a Tuesday unseen."""
    before, now = pl.Series([1, 2, 3, 4, 5, 6, 7] * 50), pl.Series([2, 2, 3, 4, 5, 6, 7] * 50)
    found = distance(before, now)
    assert found.distribution.labels == ("1", "2", "3", "4", "5", "6", "7")
    assert found.distribution.found == pytest.approx((0, 2 / 7, 1 / 7, 1 / 7, 1 / 7, 1 / 7, 1 / 7))


def test_a_mass_at_one_value_has_a_bin_of_its_own():
    """Rain: nine hours of ten there is none, and the deciles are all 0."""
    before = pl.Series([0.0] * 900 + [float(value) for value in range(1, 101)])
    now = pl.Series([0.0] * 500 + [float(value) for value in range(1, 501)])
    labels = distance(before, now).distribution.labels
    assert "0" in labels
    assert len(labels) > 10


@pytest.mark.parametrize("values", [["a", None], [1, None], [1.0, math.nan]], ids=["strings", "numbers", "NaN"])
def test_rows_without_a_value_are_a_bin(values):
    """A column that loses half of its values has changed, whatever the other half looks like."""
    full, half = pl.Series(values[:1] * 1_000), pl.Series(values * 500)
    found = distance(full, half)
    assert found.distance > found.threshold
    assert found.distribution.labels[-1] in {"no value", "NaN"}


def test_what_lies_outside_the_references_range_is_seen():
    before, now = pl.Series(range(1_000)), pl.Series([*range(-500, 0), *range(1_000, 1_500)])
    assert distance(before, now).distance == pytest.approx(1)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([1.5, -2.0, 3.0] * 40, id="few"),
        pytest.param([float(value) for value in range(1_000)], id="many"),
        pytest.param([0.0] * 500 + [float(value) for value in range(100)], id="a mass"),
        pytest.param([-math.inf, math.inf, *[float(value) for value in range(50)]], id="infinite"),
        pytest.param([1e308, -1e308, 5e-324, *[float(value) for value in range(50)]], id="extreme"),
        pytest.param([None, None], id="none"),
    ],
)
def test_every_value_is_in_one_bin(values):
    numbers = Numbers.of(pl.Series(values, dtype=pl.Float64))
    edges = reference_edges(numbers)
    assert edges == sorted(set(edges))
    assert sum(counts(numbers, edges)) == numbers.ordered.len()
    assert distance(pl.Series(values, dtype=pl.Float64), pl.Series(values, dtype=pl.Float64)).distance == 0


def test_a_point_is_a_bin_of_one_value():
    assert is_point(math.nextafter(3.0, -math.inf), 3.0)
    assert not is_point(2.0, 3.0)


def test_a_column_of_another_type_is_left_to_the_schema():
    feature, numbers = describe_column(pl.Series("x", [1, 2]))
    before, _ = describe_column(pl.Series("x", ["1", "2"]))
    assert column_distance(before, feature, numbers, CONFIG, ("before", "now")) is None


def test_a_columns_own_threshold_goes_before():
    before, now = pl.Series([1, 2] * 5_000), pl.Series([1, 2, 2] * 4_000)
    config = Drift(numbers=0.5, values=0.5, columns={"x": 0.01})
    assert distance(before, now, config).threshold < distance(before, now).threshold < 0.11


def test_the_threshold_allows_for_chance_where_there_are_few_rows():
    few, many = ([1, 2, 3, 4] * times for times in (5, 5_000))
    assert distance(pl.Series(few), pl.Series(few)).threshold > 2 * distance(pl.Series(many), pl.Series(many)).threshold


def test_statistics_survive_the_store():
    """The bins of the reference are read back from its statistics.pb."""
    feature, _ = describe_column(heavy(1).alias("x"))
    stored = statistics_pb2.FeatureNameStatistics.FromString(feature.SerializeToString())
    again, numbers = describe_column(heavy(1).alias("x"))
    found = column_distance(stored, again, numbers, CONFIG, ("before", "now"))
    assert found is not None
    assert found.distance == 0
