"""
The whole of TensorFlow Data Validation on the parity test's tables, run by ``.venv/tfdv``.

``full_tfdv.py FOLDER``: of every ``<name>.parquet``, writes ``<name>.statistics.pb`` and ``<name>.schema.pb`` (the
inferred schema); for every entry of ``cases.json``, ``<case>.anomalies.pb``. All are serialized protos.
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow_data_validation as tfdv
from tensorflow_data_validation.statistics import stats_impl
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx_bsl.arrow import table_util


def describe(path: Path) -> statistics_pb2.DatasetFeatureStatisticsList:
    """What ``tfdv.generate_statistics_from_dataframe`` does, less pandas, which makes floats of integers with nulls."""
    table = pq.read_table(path)
    # Large strings crash it; booleans are described as 0 and 1.
    plain = [
        pa.field(field.name, {pa.large_string(): pa.string(), pa.bool_(): pa.int64()}.get(field.type, field.type))
        for field in table.schema
    ]
    [batch] = table.cast(pa.schema(plain)).combine_chunks().to_batches()
    return stats_impl.generate_statistics_in_memory(table_util.CanonicalizeRecordBatch(batch))


def statistics_of(path: Path) -> statistics_pb2.DatasetFeatureStatisticsList:
    return statistics_pb2.DatasetFeatureStatisticsList.FromString(path.read_bytes())


def main(folder: Path) -> None:
    for path in sorted(folder.glob("*.parquet")):
        statistics = describe(path)
        path.with_suffix(".statistics.pb").write_bytes(statistics.SerializeToString())
        schema = tfdv.infer_schema(statistics, infer_feature_shape=False, max_string_domain_size=50)
        path.with_suffix(".schema.pb").write_bytes(schema.SerializeToString())
    for case in json.loads((folder / "cases.json").read_text()):
        references = {
            role: statistics_of(folder / case[role])
            for role in ("previous_statistics", "serving_statistics")
            if case[role] is not None
        }
        anomalies = tfdv.validate_statistics(
            statistics_of(folder / case["statistics"]),
            tfdv.load_schema_text(str(folder / case["schema"])),
            environment=case["environment"],
            **references,
        )
        (folder / f"{case['name']}.anomalies.pb").write_bytes(anomalies.SerializeToString())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
