"""The gate: a snapshot's days held against the schema; the verdict is what the report shows and the step acts on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2

from training.validation.anomalies import Anomaly, describe
from training.validation.schema import Schema, count_checks, expected_features
from training.validation.statistics import dataset_statistics
from training.validation.validator import validate_statistics
from training.validation.volume import VolumeConfig, check_days, check_volume

WINDOW: Final = "window"
_Kind = anomalies_pb2.AnomalyInfo.Type


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """All that was found. The data passed where there is no anomaly."""

    anomalies: tuple[Anomaly, ...]
    num_checks: int
    days: tuple[str, ...]
    """The calendar days of the window, oldest first."""
    num_rows: Mapping[str, int]
    """Rows by day; days without rows are missing."""
    statistics: statistics_pb2.DatasetFeatureStatisticsList
    """Of the whole window, the newest day, and the day that it was compared with; empty where there are no rows."""

    @property
    def passed(self) -> bool:
        return not self.anomalies


def examine(
    frames: Mapping[str, pl.DataFrame], days: Sequence[str], schema: Schema, volume: VolumeConfig | None
) -> Verdict:
    """
    Hold a snapshot against its schema.

    The newest day is held against it on its own, too: in a window of 30 days its rows alone would move no share.

    :param frames: rows by calendar day
    :param days: the calendar days that there should be, oldest first
    :raises BadConfigError: where the volume is to be compared with a day before the window
    """
    frames = {day: frames[day] for day in sorted(frames) if frames[day].height}
    num_rows = {day: frame.height for day, frame in frames.items()}
    newest = days[-1]
    described: list[statistics_pb2.DatasetFeatureStatistics] = []
    anomalies = check_days(days, num_rows)
    if volume is not None:
        anomalies += check_volume(days, num_rows, volume)
    if frames:
        described.append(dataset_statistics(pl.concat(frames.values()), WINDOW))
        anomalies += check_columns(described[0], schema, frames)
    if newest in frames:
        described.append(dataset_statistics(frames[newest], newest))
        known = {(anomaly.column, anomaly.kind) for anomaly in anomalies}
        anomalies += [
            anomaly
            for anomaly in check_columns(described[1], schema, {newest: frames[newest]}, rows_too=False)
            if (anomaly.column, anomaly.kind) not in known
        ]
    if volume is not None and (earlier := volume.compared_day(days)) in frames:
        described.append(dataset_statistics(frames[earlier], earlier))
    return Verdict(
        anomalies=tuple(anomalies),
        num_checks=count_checks(schema) + len(days) + (volume is not None),
        days=tuple(days),
        num_rows=num_rows,
        statistics=statistics_pb2.DatasetFeatureStatisticsList(datasets=described),
    )


def check_columns(
    statistics: statistics_pb2.DatasetFeatureStatistics,
    schema: Schema,
    frames: Mapping[str, pl.DataFrame],
    *,
    rows_too: bool = True,
) -> list[Anomaly]:
    """
    What TFDV's validator finds, and what it does not look at: a column without ``presence`` may be gone for all it
    cares, and an instant may have become a plain number.

    :param frames: the rows behind the statistics, by day
    :param rows_too: whether the schema's bounds on the number of rows are meant for them
    """
    proto = schema_pb2.Schema()
    proto.CopyFrom(schema.proto)
    if not rows_too:
        proto.ClearField("dataset_constraints")
    verdict = validate_statistics(statistics, proto)
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
        anomalies += describe(info, ".".join(info.path.step), schema, frames)
    return anomalies + _unseen_by_tfdv(schema, frames, {anomaly.column for anomaly in anomalies})


def _unseen_by_tfdv(schema: Schema, frames: Mapping[str, pl.DataFrame], already: set[str | None]) -> list[Anomaly]:
    types = next(iter(frames.values())).schema
    anomalies = []
    for feature in expected_features(schema.proto):
        name = feature.name
        if name in already:
            continue
        if name not in types:
            kind = _Kind.Name(_Kind.SCHEMA_MISSING_COLUMN)
            found, expected = "is not in the data", "the column, as the schema has it"
            title, fix = "Missing column", f"remove feature {name!r} of {schema.path}"
        elif feature.HasField("time_domain") != _is_instant(types[name]):
            kind, title = "TIME_TYPE", "Type changed"
            found = f"has the type {types[name]}"
            expected = "an instant or a date" if feature.HasField("time_domain") else "no instant"
            fix = f"change time_domain of feature {name!r} of {schema.path}"
        else:
            continue
        anomalies.append(Anomaly(column=name, kind=kind, title=title, expected=expected, found=found, fix=fix))
    return anomalies


def _is_instant(dtype: pl.DataType) -> bool:
    return dtype in (pl.Date, pl.Datetime)
