from __future__ import annotations

import polars as pl
import pytest

from training.validation.gate import examine
from training.validation.volume import VolumeConfig

DAY_BEFORE = VolumeConfig(tolerance=0.2, against_days=1)


def found(verdict):
    return {(anomaly.column, anomaly.kind): anomaly for anomaly in verdict.anomalies}


def test_data_that_fits_passes(frames, days, schema):
    verdict = examine(frames, days, schema, DAY_BEFORE)
    assert verdict.passed
    assert verdict.num_rows == dict.fromkeys(days, 100)
    assert [dataset.name for dataset in verdict.statistics.datasets] == ["window", days[-1], days[-2]]


def test_unknown_values_are_shown_with_their_days(frames, days, schema):
    frames[days[1]] = frames[days[1]].with_columns(
        carrier=pl.when(pl.col("distance") < 103).then(pl.lit("ZZ")).otherwise("carrier")
    )
    (anomaly,) = examine(frames, days, schema, DAY_BEFORE).anomalies
    assert anomaly.found == "unknown values in 3 of 500 rows, on 2013-02-06"
    assert anomaly.expected == "one of AA, UA"
    assert anomaly.examples == ("'ZZ' 3x",)
    assert anomaly.days == ("2013-02-06",)


@pytest.mark.parametrize(
    ("column", "values", "kind", "examples"),
    [
        pytest.param("distance", pl.col("distance") * -1, "INT_TYPE_SMALL_INT", "-199 5x", id="small"),
        pytest.param("distance", pl.lit(9_999), "INT_TYPE_BIG_INT", "9999 500x", id="big"),
        pytest.param("gust", pl.lit(float("nan")), "FLOAT_TYPE_HAS_NAN", "nan 500x", id="NaN"),
        pytest.param("gust", pl.col("gust") + 150, "FLOAT_TYPE_BIG_FLOAT", "201.0 5x", id="big float"),
    ],
)
def test_values_out_of_range_are_shown(frames, days, schema, column, values, kind, examples):
    frames = {day: frame.with_columns(values.alias(column)) for day, frame in frames.items()}
    anomaly = found(examine(frames, days, schema, DAY_BEFORE))[column, kind]
    assert anomaly.examples[0] == examples
    assert "on every day" in anomaly.found


def test_a_newest_day_without_values_is_found(frames, days, schema):
    """In a long window one empty day moves no share: it must be held against the schema on its own."""
    frames[days[-1]] = frames[days[-1]].with_columns(gust=pl.lit(None, dtype=pl.Float64))
    (anomaly,) = examine(frames, days, schema, DAY_BEFORE).anomalies
    assert (anomaly.column, anomaly.kind) == ("gust", "FEATURE_TYPE_NOT_PRESENT")
    assert anomaly.found == "no value in 100 of 100 rows, on 2013-02-09"


def test_a_finding_of_window_and_newest_day_is_told_once(frames, days, schema):
    frames = {day: frame.with_columns(distance=pl.lit(0)) for day, frame in frames.items()}
    verdict = examine(frames, days, schema, DAY_BEFORE)
    assert [anomaly.kind for anomaly in verdict.anomalies] == ["INT_TYPE_SMALL_INT"]


@pytest.mark.parametrize("column", ["carrier", "cancelled"])
def test_a_missing_column_is_found_with_and_without_presence(frames, days, schema, column):
    """TFDV looks for columns that have a ``presence`` only, and ``cancelled`` has none."""
    frames = {day: frame.drop(column) for day, frame in frames.items()}
    assert set(found(examine(frames, days, schema, DAY_BEFORE))) == {(column, "SCHEMA_MISSING_COLUMN")}


def test_a_new_column_is_found(frames, days, schema):
    frames = {day: frame.with_columns(leak=1) for day, frame in frames.items()}
    assert set(found(examine(frames, days, schema, DAY_BEFORE))) == {("leak", "SCHEMA_NEW_COLUMN")}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        pytest.param(pl.col("departure").dt.epoch("s"), "TIME_TYPE", id="seconds"),
        pytest.param(pl.col("departure").cast(pl.String), "UNEXPECTED_DATA_TYPE", id="text"),
    ],
)
def test_an_instant_that_became_something_else_is_found(frames, days, schema, values, kind):
    frames = {day: frame.with_columns(departure=values) for day, frame in frames.items()}
    assert set(found(examine(frames, days, schema, DAY_BEFORE))) == {("departure", kind)}


def test_an_empty_day_is_found(frames, days, schema):
    frames[days[1]] = frames[days[1]].clear()
    (anomaly,) = examine(frames, days, schema, DAY_BEFORE).anomalies
    assert (anomaly.kind, anomaly.days) == ("EMPTY_DAY", (days[1],))


def test_an_empty_snapshot_is_found(days, schema):
    """TFDV finds nothing wrong with no data."""
    verdict = examine({}, days, schema, DAY_BEFORE)
    assert [anomaly.kind for anomaly in verdict.anomalies] == ["EMPTY_DAY"]
    assert not verdict.statistics.datasets


def test_a_drop_in_volume_is_found(frames, days, schema):
    frames[days[-1]] = frames[days[-1]].head(79)
    assert set(found(examine(frames, days, schema, DAY_BEFORE))) == {(None, "COMPARATOR_LOW_NUM_EXAMPLES")}
    assert examine(frames, days, schema, None).passed


def test_bounds_on_the_number_of_rows_are_for_the_window(frames, days, schema_of, schema):
    text = (
        'feature { name: "departure" type: INT time_domain { integer_format: UNIX_SECONDS } }'
        "dataset_constraints { min_examples_count: 400 }"
    )
    frames = {day: frame.select("departure") for day, frame in frames.items()}
    assert examine(frames, days, schema_of(text), None).passed
    few = {day: frame.head(50) for day, frame in frames.items()}
    assert set(found(examine(few, days, schema_of(text), None))) == {(None, "DATASET_LOW_NUM_EXAMPLES")}
