"""The check for train/serve skew: compares the model's requests in production with the data that it is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

import polars as pl
from polars.exceptions import PolarsError
from tensorflow_metadata.proto.v0 import statistics_pb2

from mlops.contract.grain import Periods, counted
from mlops.contract.manifest import Manifest
from mlops.contract.sections.validate import Drift, ServingLog
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.engine.dtypes import zone_of
from mlops.validation.anomalies import Anomaly, ReferenceComparison, shorten
from mlops.validation.columns import check_columns, is_instant
from mlops.validation.drift import column_distance, drifted
from mlops.validation.rows import Rows
from mlops.validation.schema import SERVING, Schema, expected_features

SERVING_LOG: Final = "serving log"
TRAINING_SNAPSHOT: Final = "training snapshot"
IN_THE_LOG: Final = "in the serving log"
_KINDS: Final = {
    "parquet": (".parquet",),
    "csv": (".csv", ".csv.gz", ".csv.zst"),
    "jsonl": (".jsonl", ".jsonl.gz", ".jsonl.zst"),
}


def read_serving_log(
    config: ServingLog, manifest: Manifest, training: Rows, schema: Schema, *, home: Path, scratch: Path
) -> tuple[Rows | None, list[str]]:
    """
    Read the requests of the snapshot's window, with the columns that the schema has for serving.

    :param training: the snapshot's rows
    :param scratch: folder for the requests in order of their periods
    :return: the requests, None if none is of the window; and sentences on what is not checked
    :raises BadDataError: where there is no log, or it cannot be read
    :raises BadConfigError: where its format is not known
    """
    start, end = (datetime.fromisoformat(instant) for instant in (manifest.interval_start, manifest.interval_end))
    file = scratch / "serving_log.parquet"
    try:
        log = _with_instants(_scan(config, home), config)
        columns = log.collect_schema().names()
        kept = [feature.name for feature in expected_features(schema.proto, SERVING) if feature.name in columns]
        instant = pl.col(config.event_time)
        log.filter(instant >= start, instant < end).select(*dict.fromkeys([config.event_time, *kept])).sort(
            config.event_time
        ).sink_parquet(file)
    except (PolarsError, FileNotFoundError) as error:
        raise BadDataError(f"validate.serving_log: cannot read {config.path}: {error}") from error
    rows = Rows(
        whole=pl.scan_parquet(file),
        num_rows={},
        event_time=config.event_time,
        kind=Periods(manifest.grain, manifest.timezone),
    )
    by_period = rows.whole.group_by(rows.period.alias("period")).len().sort("period").collect()
    if by_period.is_empty():
        return None, [
            f"Skew between training and serving was not checked: {config.path} has no request "
            f"from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC."
        ]
    others = sorted(set(columns) - {config.event_time, *kept})
    notes = (
        [f"Columns of the serving log that the schema does not have for serving: {shorten(others)}."] if others else []
    )
    rows = replace(rows, whole=rows.whole.select(kept), num_rows=dict(by_period.iter_rows()))
    return replace(rows, whole=_as_in_training(rows, training)), notes


def check_serving_log(
    log: Rows,
    training: statistics_pb2.DatasetFeatureStatistics,
    schema: Schema,
    drift: Drift | None,
    periods: Sequence[str],
) -> tuple[list[Anomaly], ReferenceComparison]:
    """
    Check the log against the schema, in its environment SERVING, and compare its distributions with the snapshot's.

    :param training: statistics of the snapshot's window
    :param periods: periods of the snapshot
    """
    number = counted(len(log.num_rows), log.kind.grain)
    names = f"{TRAINING_SNAPSHOT}, {periods[0]} to {periods[-1]}", f"{log.total:,} requests of {number}"
    reference = {feature.path.step[0]: feature for feature in training.features}
    described = statistics_pb2.DatasetFeatureStatistics(name=SERVING_LOG, num_examples=log.total)
    columns = []
    for column in log.columns():
        feature, numbers = column.describe()
        described.features.append(feature)
        if drift is not None and column.name in reference and not is_instant(column.dtype):
            distance = column_distance(reference[column.name], feature, numbers, drift, names)
            columns += [distance] if distance is not None else []
    anomalies = [
        replace(anomaly, title=f"{anomaly.title} {IN_THE_LOG}", found=f"{IN_THE_LOG}, {anomaly.found}")
        for anomaly in [
            *check_columns(described, schema, log, list(log.num_rows), whole=False, environment=SERVING),
            *(
                drifted(column, f"the {TRAINING_SNAPSHOT}", "Skew")
                for column in columns
                if column.distance > column.threshold
            ),
        ]
    ]
    comparison = ReferenceComparison(
        reference=SERVING_LOG, description=names[1], compared=drift is not None, columns=tuple(columns)
    )
    return anomalies, comparison


def _scan(config: ServingLog, home: Path) -> pl.LazyFrame:
    remote = "://" in config.path and not config.path.startswith("file://")
    place = config.path if remote else str(home / config.path.removeprefix("file://"))
    kind = next((kind for kind in _KINDS if config.path.endswith(_KINDS[kind])), None)
    if kind == "parquet":
        return pl.scan_parquet(place)
    if kind == "csv":
        # As text: the snapshot says what the types are.
        return pl.scan_csv(place, infer_schema=False, null_values=list(config.null_values))
    if kind == "jsonl":
        return pl.scan_ndjson(place, infer_schema_length=None)
    known = ", ".join(ending for endings in _KINDS.values() for ending in endings)
    raise BadConfigError(f"validate.serving_log.path {config.path!r} is of no known format; known are {known}")


def _with_instants(log: pl.LazyFrame, config: ServingLog) -> pl.LazyFrame:
    columns = log.collect_schema()
    if config.event_time not in columns:
        raise BadDataError(
            f"validate.serving_log: {config.path} has no column {config.event_time!r}, which event_time names; "
            f"it has {', '.join(columns)}"
        )
    dtype, instant = columns[config.event_time], pl.col(config.event_time)
    if dtype == pl.String:
        parsed = instant.str.to_datetime(time_unit="us", time_zone="UTC", strict=False)
        # A request without an instant is of no period: it must not be the example that hides a malformed one.
        example = log.select(instant.filter(instant.is_not_null(), parsed.is_null()).first()).collect().item()
        if example is None:
            return log.with_columns(parsed)
    elif zone_of(dtype) is not None:
        return log
    else:
        example = f"the type {dtype}"
    raise BadDataError(
        f"validate.serving_log: {config.event_time!r} of {config.path} holds {example}, which is no instant; write it "
        "in ISO 8601 with its offset, e.g. 2013-01-31T10:00:00Z"
    )


def _as_in_training(log: Rows, training: Rows) -> pl.LazyFrame:
    """
    Cast columns to the snapshot's types where this loses nothing: CSV is text, and JSON has only one kind of number.
    """
    casts = {}
    for name, dtype in log.schema.items():
        wanted = training.schema.get(name)
        if wanted is not None and dtype != wanted and (dtype == pl.String or dtype.is_numeric()):
            casts[name] = _cast(pl.col(name), dtype, wanted)
    lossless = log.table.select(
        (pl.col(name).is_null() | (cast.is_not_null() if log.schema[name] == pl.String else cast == pl.col(name)))
        .fill_null(False)
        .all()
        .alias(name)
        for name, cast in casts.items()
    ).collect()
    return log.table.with_columns(casts[name].alias(name) for name in lossless.columns if lossless[name].item())


def _cast(value: pl.Expr, dtype: pl.DataType, wanted: pl.DataType) -> pl.Expr:
    if dtype != pl.String or wanted.is_numeric():
        return value.cast(wanted, strict=False)
    if wanted == pl.Boolean:
        return value.str.to_lowercase().replace_strict({"true": True, "false": False}, default=None)
    if isinstance(wanted, pl.Datetime):
        return value.str.to_datetime(time_unit=wanted.time_unit, time_zone=wanted.time_zone, strict=False)
    return value.str.to_date(strict=False) if wanted == pl.Date else value
