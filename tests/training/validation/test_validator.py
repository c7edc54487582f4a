"""The binding is private to TFDV: what it returns is held here."""

from __future__ import annotations

import subprocess
import sys

import polars as pl
import pytest
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2

from mlops.validation.statistics import dataset_statistics
from mlops.validation.validator import infer_schema, validate_statistics

PRESENT = "presence { min_count: 1 min_fraction: 0.9 }"


def kinds(frame: pl.DataFrame, schema_text: str) -> set[str]:
    verdict = validate_statistics(
        dataset_statistics(frame, "window"), text_format.Parse(schema_text, schema_pb2.Schema())
    )
    return {
        anomalies_pb2.AnomalyInfo.Type.Name(reason.type)
        for info in verdict.anomaly_info.values()
        for reason in info.reason
    }


@pytest.mark.parametrize(
    ("values", "feature", "expected"),
    [
        pytest.param([1, 2], f"type: INT {PRESENT}", set(), id="fits"),
        pytest.param([1, 2], f"type: BYTES {PRESENT}", {"UNEXPECTED_DATA_TYPE"}, id="type"),
        pytest.param([-1, 2], "type: INT int_domain { min: 0 }", {"INT_TYPE_SMALL_INT"}, id="small"),
        pytest.param([1, 9], "type: INT int_domain { max: 8 }", {"INT_TYPE_BIG_INT"}, id="big"),
        pytest.param([-1.5], "type: FLOAT float_domain { min: 0 }", {"FLOAT_TYPE_SMALL_FLOAT"}, id="small float"),
        pytest.param(
            [1.0, float("nan")], "type: FLOAT float_domain { disallow_nan: true }", {"FLOAT_TYPE_HAS_NAN"}, id="NaN"
        ),
        pytest.param(["b"], 'type: BYTES domain: "d"', {"ENUM_TYPE_UNEXPECTED_STRING_VALUES"}, id="domain"),
        pytest.param([1, None], f"type: INT {PRESENT}", {"FEATURE_TYPE_LOW_FRACTION_PRESENT"}, id="missing values"),
        pytest.param([2, 3], "type: INT bool_domain { }", {"BOOL_TYPE_BIG_INT"}, id="boolean"),
    ],
)
def test_what_tfdv_finds(values, feature, expected):
    text = f'feature {{ name: "x" {feature} }} string_domain {{ name: "d" value: "a" }}'
    assert kinds(pl.DataFrame({"x": values}), text) == expected


def test_new_and_missing_columns_are_found():
    text = f'feature {{ name: "gone" type: INT {PRESENT} }}'
    assert kinds(pl.DataFrame({"new": [1]}), text) == {"SCHEMA_MISSING_COLUMN", "SCHEMA_NEW_COLUMN"}


def test_the_volume_comparator_needs_previous_statistics():
    """TFDV skips it in silence without them: the reason why the gate checks the comparison day itself."""
    schema = schema_pb2.Schema()
    schema.dataset_constraints.num_examples_drift_comparator.min_fraction_threshold = 0.8
    now = statistics_pb2.DatasetFeatureStatistics(num_examples=10)
    before = statistics_pb2.DatasetFeatureStatistics(num_examples=100)
    assert not validate_statistics(now, schema).HasField("dataset_anomaly_info")
    assert validate_statistics(now, schema, before).HasField("dataset_anomaly_info")


def test_inference_gives_few_strings_a_domain():
    frame = pl.DataFrame({"few": ["a", "b"] * 50, "many": [f"v{row}" for row in range(100)]})
    schema = infer_schema(dataset_statistics(frame, "window"), max_domain_values=50)
    assert {feature.name: feature.domain for feature in schema.feature} == {"few": "few", "many": ""}


def test_neither_tensorflow_nor_tfdv_is_imported():
    """Importing TFDV costs 18 s and needs packages that the runtime does not have."""
    code = (
        "import sys; from mlops.validation.validator import _extension; _extension();"
        "print(sorted({'tensorflow', 'tensorflow_data_validation', 'apache_beam', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
