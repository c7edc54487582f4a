"""Checks of the columns against the schema."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2

from mlops.validation.anomalies import Anomaly, describe
from mlops.validation.chance import deviations_for, most_by_chance
from mlops.validation.rows import Rows
from mlops.validation.schema import ENVIRONMENTS, TRAINING, Schema, expected_features
from mlops.validation.statistics import num_without_value
from mlops.validation.validator import validate_statistics

_Kind = anomalies_pb2.AnomalyInfo.Type


def check_columns(
    statistics: statistics_pb2.DatasetFeatureStatistics,
    schema: Schema,
    rows: Rows,
    periods: Sequence[str],
    *,
    whole: bool = True,
    environment: str = TRAINING,
) -> list[Anomaly]:
    """
    Return what TFDV's validator finds, and what it does not check: it accepts that a column without ``presence`` is
    gone, and that an instant has become a plain number.

    :param periods: the periods that the statistics describe
    :param whole: True if the schema's bounds on the number of rows apply to them, and its shares of missing values as
        they stand; a period's are allowed what chance does to so few rows
    """
    proto = schema_pb2.Schema()
    proto.CopyFrom(schema.proto)
    if not whole:
        proto.ClearField("dataset_constraints")
        _allow_for_chance(proto, int(statistics.num_examples))
    if not proto.default_environment:
        # Otherwise TFDV would expect no column in any environment.
        proto.default_environment.extend(ENVIRONMENTS)
    verdict = validate_statistics(statistics, proto, environment=environment)
    anomalies = [
        Anomaly(
            column=None,
            kind=_Kind.Name(reason.type),
            title="Number of rows",
            expected=f"the dataset_constraints of {schema.path}",
            found=reason.description.strip(),
            fix=f"Change dataset_constraints of {schema.path}",
        )
        for reason in verdict.dataset_anomaly_info.reason
    ]
    for info in sorted(verdict.anomaly_info.values(), key=lambda info: list(info.path.step)):
        anomalies += describe(info, ".".join(info.path.step), schema, rows, periods)
    already = {anomaly.column for anomaly in anomalies}
    anomalies += _unseen_by_tfdv(schema, rows.schema, already, environment)
    return anomalies + _no_numbers(statistics, schema, proto, {anomaly.column for anomaly in anomalies}, environment)


def _allow_for_chance(proto: schema_pb2.Schema, num_rows: int) -> None:
    """Lower each ``min_fraction`` by what chance may do to so few rows; who wants a value in all rows gets that."""
    deviations = deviations_for(len(proto.feature))
    for feature in proto.feature:
        if num_rows and 0 < feature.presence.min_fraction < 1:
            missing = most_by_chance(num_rows, 1 - feature.presence.min_fraction, deviations)
            # Half a row of room for TFDV's single precision.
            feature.presence.min_fraction = max(0.0, (num_rows - missing - 0.5) / num_rows)


def _unseen_by_tfdv(schema: Schema, types: pl.Schema, already: set[str | None], environment: str) -> list[Anomaly]:
    anomalies = []
    for feature in expected_features(schema.proto, environment):
        name = feature.name
        if name in already:
            continue
        if name not in types:
            kind = _Kind.Name(_Kind.SCHEMA_MISSING_COLUMN)
            found, expected = "is not in the data", "the column, as the schema has it"
            title, fix = "Missing column", f"remove feature {name!r} of {schema.path}"
        elif feature.HasField("time_domain") != is_instant(types[name]):
            kind, title = "TIME_TYPE", "Type changed"
            found = f"has the type {types[name]}"
            expected = "an instant or a date" if feature.HasField("time_domain") else "no instant"
            fix = f"change time_domain of feature {name!r} of {schema.path}"
        else:
            continue
        anomalies.append(Anomaly(column=name, kind=kind, title=title, expected=expected, found=found, fix=fix))
    return anomalies


def _no_numbers(
    statistics: statistics_pb2.DatasetFeatureStatistics,
    schema: Schema,
    proto: schema_pb2.Schema,
    already: set[str | None],
    environment: str,
) -> list[Anomaly]:
    """Report columns with too few values because of NaN, which TFDV counts as a value."""
    described = {feature.path.step[0]: feature for feature in statistics.features}
    anomalies = []
    for feature in expected_features(proto, environment):
        stats = described.get(feature.name)
        if stats is None or stats.HasField("string_stats") or feature.name in already:
            continue
        num_rows, num_without = int(statistics.num_examples), num_without_value(stats)
        num_nan = num_without - int(stats.num_stats.common_stats.num_missing)
        required = max(feature.presence.min_fraction * num_rows, feature.presence.min_count)
        if num_nan and num_rows - num_without < required:
            anomalies.append(
                Anomaly(
                    column=feature.name,
                    kind=_Kind.Name(_Kind.FEATURE_TYPE_LOW_FRACTION_PRESENT),
                    title="Too many missing values",
                    expected=f"a value in at least {required:,.0f} rows",
                    found=f"no number in {num_without:,} of {num_rows:,} rows, {num_nan:,} are NaN",
                    fix=f"lower presence.min_fraction of feature {feature.name!r} of {schema.path}",
                )
            )
    return anomalies


def is_instant(dtype: pl.DataType) -> bool:
    """Return True if a column's values are points in time."""
    return dtype in (pl.Date, pl.Datetime)
