"""What breaks in one slice is a small share of all rows, and passes every check on them as a whole."""

from __future__ import annotations

import polars as pl
import pytest

from mlops.contract.sections.validate import Volume
from mlops.contract.step import BadConfigError
from mlops.validation import slice_checks

VOLUME = Volume(tolerance=0.25, against=1)
CARRIERS = {"AA": 60, "UA": 30, "HA": 2}


@pytest.fixture
def frames(frames):
    """Five days of two large carriers and a small one, at two airports."""

    def of(day: pl.DataFrame) -> pl.DataFrame:
        carriers = [carrier for carrier, rows in CARRIERS.items() for _ in range(rows)]
        rows = day.head(len(carriers))
        return rows.with_columns(carrier=pl.Series(carriers), distance=pl.lit(100, dtype=pl.Int64))

    return {day: of(frame) for day, frame in frames.items()}


@pytest.fixture
def schema(schema_of):
    return schema_of("""
    feature { name: "departure" type: INT time_domain { integer_format: UNIX_SECONDS } }
    feature { name: "carrier" type: BYTES }
    feature { name: "distance" type: INT }
    feature { name: "gust" type: FLOAT }
    feature { name: "cancelled" type: INT }
    """)


@pytest.fixture
def newest(frames, days, schema, examined):
    """Change the newest day, and look at the slices."""

    def look(*changes: pl.Expr, keep: pl.Expr | None = None, **settings):
        day = frames[days[-1]].with_columns(*changes)
        day = day if keep is None else day.filter(keep)
        settings = {"slices": ["carrier"], "volume": None, **settings}
        return examined({**frames, days[-1]: day}, days, schema, **settings)

    return look


def lines(verdict):
    return [anomaly.line for anomaly in verdict.anomalies]


def test_slices_like_before_pass_and_are_listed(newest):
    verdict = newest()
    assert verdict.passed
    assert [(found.name, found.num_rows, found.newest) for found in verdict.slices] == [
        ("carrier=AA", 300, 60),
        ("carrier=UA", 150, 30),
        ("carrier=HA", 10, 2),
    ]


def test_a_slice_that_vanished_is_found(newest):
    (line,) = lines(newest(keep=pl.col("carrier") != "UA"))
    assert line == "slice carrier=UA: no rows on 2013-02-09; expected about 30 rows, as on every day before"


def test_a_small_slice_may_have_no_rows_for_a_day(newest):
    assert newest(keep=pl.col("carrier") != "HA").passed


def test_a_slice_that_appeared_is_found(newest):
    renamed = pl.col("carrier").replace({"UA": "united"})
    found = lines(newest(renamed))
    assert (
        "slice carrier=united: 30 rows on 2013-02-09, and none before; expected a slice that was there before" in found
    )
    assert newest(pl.col("carrier").replace({"HA": "hawaiian"})).passed


def test_values_missing_in_a_slice_are_found(newest):
    """Of all rows two thirds have a value, as the schema asks for; of UA's none has."""
    (line,) = lines(newest(pl.when(pl.col("carrier") != "UA").then("distance").alias("distance")))
    assert line == (
        "slice carrier=UA: column distance: no value in 100% of the rows of 2013-02-09 "
        "(e.g. carrier=UA: 0% -> 100%); expected at most about 0%, as on the worst day before"
    )


def test_values_missing_in_all_slices_are_told_once(newest):
    *_, anomaly = newest(pl.lit(None, dtype=pl.Int64).alias("distance")).anomalies
    assert "so in 2 of the 3 slices of carrier" in anomaly.found


def test_the_tolerance_is_the_pipelines(newest):
    some = pl.when((pl.col("carrier") != "AA") | (pl.int_range(pl.len()) % 6 == 0)).then("distance").alias("distance")
    assert not newest(some).passed
    assert newest(some, slice_tolerance=0.6).passed


def test_the_volume_of_a_slice_is_found(newest, frames, days, examined, schema):
    """UA has lost two thirds of its rows, and the whole is within 25%."""
    bulk = {day: pl.concat([frame] * 20) for day, frame in frames.items()}
    fewer = bulk[days[-1]].filter((pl.col("carrier") != "UA") | (pl.int_range(pl.len()) % 3 == 0))
    verdict = examined({**bulk, days[-1]: fewer}, days, schema, slices=["carrier"], volume=VOLUME)
    assert [anomaly.slice for anomaly in verdict.anomalies] == ["carrier=UA"]
    assert verdict.anomalies[0].found.endswith("rows on 2013-02-09, 600 on 2013-02-08")


def test_a_drop_of_all_rows_is_not_told_for_every_slice(newest):
    (line,) = lines(newest(keep=pl.int_range(pl.len()) % 3 == 0, volume=VOLUME))
    assert line.startswith("2013-02-09 has 31 rows, 2013-02-08 had 92")


def test_rows_without_a_slice_are_a_slice(newest):
    found = lines(newest(pl.when(pl.col("carrier") != "UA").then("carrier").alias("carrier")))
    assert any(line.startswith("slice carrier=null: 30 rows on 2013-02-09") for line in found)


def test_the_first_day_has_nothing_to_be_held_against(frames, days, schema, examined):
    verdict = examined({days[-1]: frames[days[-1]]}, days[-1:], schema, slices=["carrier"], volume=None)
    assert verdict.notes == ("The slices were not checked: there are no rows of 2013-02-09 and of a day before it.",)


def test_a_column_of_too_many_values_is_refused(newest, monkeypatch):
    monkeypatch.setattr(slice_checks, "MAX_SLICES", 100)
    with pytest.raises(BadConfigError, match="'departure', which has 460 different values: slices are for columns of"):
        newest(slices=["departure"])
