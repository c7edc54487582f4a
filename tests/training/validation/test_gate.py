from __future__ import annotations

import polars as pl
import pytest

from mlops.contract.sections.validate import Drift
from mlops.contract.step import BadConfigError
from mlops.validation import rows


def found(verdict):
    return {(anomaly.column, anomaly.kind): anomaly for anomaly in verdict.anomalies}


def test_data_that_fits_passes(examined, frames, days, schema):
    verdict = examined(frames, days, schema)
    assert verdict.passed
    assert verdict.num_rows == dict.fromkeys(days, 100)
    assert [dataset.name for dataset in verdict.statistics.datasets] == ["window", days[-1]]


def test_unknown_values_are_shown_with_their_days(examined, frames, days, schema):
    frames[days[1]] = frames[days[1]].with_columns(
        carrier=pl.when(pl.col("distance") < 103).then(pl.lit("ZZ")).otherwise("carrier")
    )
    (anomaly,) = examined(frames, days, schema).anomalies
    assert anomaly.found == "unknown values in 3 of 500 rows, on 2013-02-06"
    assert anomaly.expected == "one of AA, UA"
    assert anomaly.examples == ("'ZZ' 3x",)
    assert anomaly.periods == ("2013-02-06",)


@pytest.mark.parametrize(
    ("column", "values", "kind", "examples"),
    [
        pytest.param("distance", pl.col("distance") * -1, "INT_TYPE_SMALL_INT", "-199 5x", id="small"),
        pytest.param("distance", pl.lit(9_999), "INT_TYPE_BIG_INT", "9999 500x", id="big"),
        pytest.param("gust", pl.lit(float("nan")), "FLOAT_TYPE_HAS_NAN", "nan 500x", id="NaN"),
        pytest.param("gust", pl.col("gust") + 150, "FLOAT_TYPE_BIG_FLOAT", "201.0 5x", id="big float"),
    ],
)
def test_values_out_of_range_are_shown(examined, frames, days, schema, column, values, kind, examples):
    frames = {day: frame.with_columns(values.alias(column)) for day, frame in frames.items()}
    anomaly = found(examined(frames, days, schema))[column, kind]
    assert anomaly.examples[0] == examples
    assert "on every day" in anomaly.found


def test_a_newest_day_without_values_is_found(examined, frames, days, schema):
    """In a long window one empty day moves no share: it must be held against the schema on its own."""
    frames[days[-1]] = frames[days[-1]].with_columns(gust=pl.lit(None, dtype=pl.Float64))
    (anomaly,) = examined(frames, days, schema).anomalies
    assert (anomaly.column, anomaly.kind) == ("gust", "FEATURE_TYPE_NOT_PRESENT")
    assert anomaly.found == "no value in 100 of 100 rows, on 2013-02-09"


def test_a_newest_day_of_nan_is_a_day_without_values(examined, frames, days, schema_of, schema_text):
    """TFDV counts NaN as a value: a sensor that fails at night would pass where the schema does not forbid them."""
    schema = schema_of(schema_text.replace(" disallow_nan: true", ""))
    frames[days[-1]] = frames[days[-1]].with_columns(gust=pl.lit(float("nan")))
    (anomaly,) = examined(frames, days, schema).anomalies
    assert (anomaly.column, anomaly.kind) == ("gust", "FEATURE_TYPE_LOW_FRACTION_PRESENT")
    assert anomaly.found == "no number in 100 of 100 rows, 100 are NaN"
    assert anomaly.expected == "a value in at least 30 rows"


def test_a_finding_of_window_and_newest_day_is_told_once(examined, frames, days, schema):
    frames = {day: frame.with_columns(distance=pl.lit(0)) for day, frame in frames.items()}
    verdict = examined(frames, days, schema)
    assert [anomaly.kind for anomaly in verdict.anomalies] == ["INT_TYPE_SMALL_INT"]


@pytest.mark.parametrize("column", ["carrier", "cancelled"])
def test_a_missing_column_is_found_with_and_without_presence(examined, frames, days, schema, column):
    """TFDV looks for columns that have a ``presence`` only, and ``cancelled`` has none."""
    frames = {day: frame.drop(column) for day, frame in frames.items()}
    assert set(found(examined(frames, days, schema))) == {(column, "SCHEMA_MISSING_COLUMN")}


def test_a_new_column_is_found(examined, frames, days, schema):
    frames = {day: frame.with_columns(leak=1) for day, frame in frames.items()}
    assert set(found(examined(frames, days, schema))) == {("leak", "SCHEMA_NEW_COLUMN")}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        pytest.param(pl.col("departure").dt.epoch("s"), "TIME_TYPE", id="seconds"),
        pytest.param(pl.col("departure").cast(pl.String), "UNEXPECTED_DATA_TYPE", id="text"),
    ],
)
def test_an_instant_that_became_something_else_is_found(examined, frames, days, schema, values, kind):
    frames = {day: frame.with_columns(departure=values) for day, frame in frames.items()}
    assert set(found(examined(frames, days, schema))) == {("departure", kind)}


def test_an_empty_day_is_found(examined, frames, days, schema):
    frames[days[1]] = frames[days[1]].clear()
    (anomaly,) = examined(frames, days, schema).anomalies
    assert (anomaly.kind, anomaly.periods) == ("EMPTY_PERIOD", (days[1],))


def test_an_empty_snapshot_is_found(examined, days, schema):
    """TFDV finds nothing wrong with no data."""
    verdict = examined({}, days, schema)
    assert [anomaly.kind for anomaly in verdict.anomalies] == ["EMPTY_PERIOD"]
    assert not verdict.statistics.datasets


def test_a_drop_in_volume_is_found(examined, frames, days, schema):
    frames[days[-1]] = frames[days[-1]].head(79)
    assert set(found(examined(frames, days, schema))) == {(None, "COMPARATOR_LOW_NUM_EXAMPLES")}
    assert examined(frames, days, schema, volume=None).passed


def test_bounds_on_the_number_of_rows_are_for_the_window(examined, frames, days, schema_of, schema):
    text = (
        'feature { name: "departure" type: INT time_domain { integer_format: UNIX_SECONDS } }'
        "dataset_constraints { min_examples_count: 400 }"
    )
    frames = {day: frame.select("departure") for day, frame in frames.items()}
    assert examined(frames, days, schema_of(text), volume=None).passed
    few = {day: frame.head(50) for day, frame in frames.items()}
    assert set(found(examined(few, days, schema_of(text), volume=None))) == {(None, "DATASET_LOW_NUM_EXAMPLES")}


def test_a_key_that_occurs_twice_is_found(examined, frames, days, schema):
    frames[days[1]] = pl.concat([frames[days[1]], frames[days[1]].head(2)])
    (anomaly,) = examined(frames, days, schema, unique=[["departure", "carrier"]]).anomalies
    assert (anomaly.column, anomaly.kind, anomaly.periods) == ("departure + carrier", "DUPLICATES", ("2013-02-06",))
    assert anomaly.found == "2 keys occur more than once, in 4 of 502 rows, on 2013-02-06"
    assert anomaly.examples[0] == "2013-02-06 12:00:00+00:00, UA 2x"


def test_rows_without_a_key_are_duplicates_of_each_other(examined, frames, days, schema):
    """A key must be known to be one."""
    number = pl.col("departure").dt.epoch("s")
    numbered = {day: frame.with_columns(request=number) for day, frame in frames.items()}
    numbered[days[1]] = frames[days[1]].with_columns(request=pl.when(pl.col("distance") > 101).then(number))
    anomaly = found(examined(numbered, days, schema, unique=[["request"]]))["request", "DUPLICATES"]
    assert anomaly.examples == ("None 2x",)


def test_keys_that_occur_once_pass(examined, frames, days, schema):
    assert examined(frames, days, schema, unique=[["departure"], ["departure", "carrier"]]).passed


def test_a_missing_column_of_a_key_is_told_once(examined, frames, days, schema):
    frames = {day: frame.drop("carrier") for day, frame in frames.items()}
    verdict = examined(frames, days, schema, unique=[["carrier"]], slices=["carrier"])
    assert set(found(verdict)) == {("carrier", "SCHEMA_MISSING_COLUMN")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"unique": [["departur"]]}, "validate.unique .*'departur'.*did you mean 'departure'", id="unique"),
        pytest.param({"slices": ["airport"]}, "validate.slices .*'airport'.*there are departure, carrier", id="slices"),
        pytest.param(
            {"drift": Drift(numbers=0.1, values=0.1, columns={"Gust": None})},
            r"validate.drift.columns .*'Gust'.*did you mean 'gust'",
            id="drift",
        ),
    ],
)
def test_a_setting_names_columns_that_are_there(examined, frames, days, schema, changes, message):
    """A mistyped column would be a check that is never made."""
    with pytest.raises(BadConfigError, match=message):
        examined(frames, days, schema, **changes)


def test_a_column_of_serving_only_is_not_expected_in_training(examined, frames, days, schema_of, schema):
    text = 'feature { name: "departure" type: INT time_domain { integer_format: UNIX_SECONDS } }'
    request = 'feature { name: "request" type: INT presence { min_count: 1 } not_in_environment: "TRAINING" }'
    frames = {day: frame.select("departure") for day, frame in frames.items()}
    assert examined(frames, days, schema_of(text + request)).passed
    everywhere = request.replace('not_in_environment: "TRAINING"', "")
    assert set(found(examined(frames, days, schema_of(text + everywhere)))) == {("request", "SCHEMA_MISSING_COLUMN")}


def test_the_passes_over_the_files_change_nothing(examined, frames, days, schema, monkeypatch):
    """Columns of a large window are read a few at a time."""
    at_once = examined(frames, days, schema)
    monkeypatch.setattr(rows, "_PASS_BYTES", 1)
    assert examined(frames, days, schema) == at_once
