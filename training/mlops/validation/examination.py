"""The gate, which compares a snapshot with all that is expected of it; the report shows its verdict."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensorflow_metadata.proto.v0 import statistics_pb2

from mlops.contract.grain import Grain, counted
from mlops.contract.sections.validate import Validate
from mlops.contract.step import BadConfigError
from mlops.validation.anomalies import Anomaly, ColumnDistance, ReferenceComparison, shorten
from mlops.validation.baselines import PREVIOUS, WINDOW, Reference
from mlops.validation.chance import deviations_for
from mlops.validation.columns import check_columns, is_instant
from mlops.validation.drift import column_distance, drifted
from mlops.validation.freshness import check_freshness
from mlops.validation.newest_period import FARTHEST, MIN_PERIODS, Judged, period_distance, unlike_earlier_periods
from mlops.validation.rows import Rows
from mlops.validation.schema import Schema, count_checks
from mlops.validation.serving_skew import check_serving_log
from mlops.validation.slice_checks import SliceSummary, check_slices
from mlops.validation.uniqueness import check_unique
from mlops.validation.volume import check_against_previous, check_periods, check_volume, compared_periods
from mlops.validation.window_periods import WindowPeriods, not_passed


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationResult:
    """The result of the gate. The data passed if there is no anomaly."""

    anomalies: tuple[Anomaly, ...]
    num_checks: int
    periods: tuple[str, ...]
    """Those of the window in which there must be rows, or are some, oldest first."""
    compared: str | None
    """The period that the newest one's rows were compared with; None if they were not."""
    num_rows: Mapping[str, int]
    """Number of rows by period; periods without rows are missing."""
    statistics: statistics_pb2.DatasetFeatureStatisticsList
    """Statistics of the whole window and of the newest period; empty if there are no rows."""
    comparisons: tuple[ReferenceComparison, ...] = ()
    """The references that the distributions were compared with, or could not be."""
    slices: tuple[SliceSummary, ...] = ()
    """Slices of each column of ``validate.slices``, the largest first."""
    notes: tuple[str, ...] = ()
    """Checks that were not possible and why, a sentence each."""

    @property
    def passed(self) -> bool:
        return not self.anomalies


@dataclass(frozen=True, kw_only=True, slots=True)
class Examined:
    """A snapshot to be examined, and the data that it is compared with."""

    rows: Rows
    periods: WindowPeriods
    interval_start: str
    """First period of the data interval, which may be the last one of several ``periods``."""
    interval_end: str
    """End of the data interval, ISO 8601."""
    references: Sequence[Reference]
    serving: Rows | None
    """The serving log's requests of these periods; None if there is no log, or it has none."""
    notes: Sequence[str]
    """Checks that are known beforehand to be impossible, a sentence each."""


@dataclass(frozen=True, slots=True)
class _Described:
    """The result of one reading of all columns."""

    window: statistics_pb2.DatasetFeatureStatistics
    newest: statistics_pb2.DatasetFeatureStatistics | None
    """Statistics of the newest period; None if it is the only period, or has no rows."""
    distances: Mapping[str, Sequence[ColumnDistance]]
    """Distances of the columns, by the reference's name."""
    uncompared: Mapping[str, Sequence[str]]
    """Columns that a reference lacks or has in another type, by the reference in words."""
    period_distances: Sequence[ColumnDistance]
    """Distances of the new periods' columns from those of the periods before them."""


def examine(data: Examined, schema: Schema, config: Validate) -> ValidationResult:
    """
    Check a snapshot against its schema, its earlier periods, the references and the serving log.

    :raises BadConfigError: where the settings ask for periods or columns that are not there
    """
    data = replace(data, periods=_with_earlier(data))
    anomalies, compared = _check_volume(data, config)
    grain = data.periods.grain
    num_compared = sum(earlier is not None for earlier in compared.values())
    num_checks = count_checks(schema) + len(data.periods.looked_at) + num_compared
    comparisons: list[ReferenceComparison] = []
    slices: list[SliceSummary] = []
    notes = list(data.notes)
    if alone := [period for period, earlier in compared.items() if earlier is None]:
        which = f"has one {grain}" if len(data.periods.all) == 1 else "has none that is like it and has passed"
        notes.append(f"The rows of {shorten(alone)} were not compared with an earlier {grain}'s: the window {which}.")
    described = _describe(data, config) if data.rows.total else None
    if described is not None:
        _check_names(config, data.rows, schema)
        volume_fits = not anomalies
        anomalies += _check_schema(described, data, schema)
        told = {anomaly.column for anomaly in anomalies}
        found, comparison, blind = _check_new_periods(described, data, config)
        notes += blind
        anomalies += [anomaly for anomaly in found if anomaly.column not in told]
        if config.max_age_hours is not None:
            event_time = _features(described.window)[data.rows.event_time]
            anomalies += check_freshness(event_time, data.interval_end, config.max_age_hours)
        for key in config.unique:
            anomalies += check_unique(data.rows, key)
        found, slices, unchecked = _check_slices(data, config, volume_fits)
        anomalies += found
        notes += unchecked
        notes += [
            f"Not compared with {words}, which lacks them or has them in another type: {shorten(columns)}."
            for words, columns in described.uncompared.items()
            if columns
        ]
        found, references = _check_references(described, data, config)
        anomalies += found
        comparisons = [comparison, *references]
        if data.serving is not None:
            found, skew = check_serving_log(
                data.serving, described.window, schema, config.drift, data.periods.looked_at
            )
            anomalies += found
            comparisons.append(skew)
        num_checks += len(config.unique) + (config.max_age_hours is not None) + len(slices)
        num_checks += sum(len(comparison.columns) for comparison in comparisons)
    return ValidationResult(
        anomalies=tuple(anomalies),
        num_checks=num_checks,
        periods=tuple(data.periods.looked_at),
        compared=compared.get(data.periods.newest),
        num_rows=data.rows.num_rows,
        statistics=statistics_pb2.DatasetFeatureStatisticsList(
            datasets=[part for part in (described.window, described.newest) if part] if described else []
        ),
        comparisons=tuple(comparisons),
        slices=tuple(slices),
        notes=tuple(notes),
    )


def _check_volume(data: Examined, config: Validate) -> tuple[list[Anomaly], Mapping[str, str | None]]:
    """
    Check that each period has rows, a new one as many as one before it, and all as many as in the last snapshot.

    :return: what is wrong, and with which earlier period each one that is judged was compared; None: with none
    """
    num_rows, before = data.rows.num_rows, _before(data)
    anomalies = check_periods(data.periods, num_rows)
    if config.volume is None:
        return anomalies, {}
    known = {**num_rows, **{period: before[period] for period in data.periods.earlier}}
    compared = compared_periods(data.periods, known, config.volume)
    anomalies += check_volume(compared, data.periods, known, config.volume)
    if before:
        anomalies += check_against_previous(data.periods, num_rows, before, config.volume)
    return anomalies, compared


def _describe(data: Examined, config: Validate) -> _Described:
    """Read every column once: describe it, and count it in the bins of each reference, and by period."""
    rows, newest, drift = data.rows, data.periods.newest, config.drift
    window = statistics_pb2.DatasetFeatureStatistics(name=WINDOW, num_examples=rows.total)
    last = statistics_pb2.DatasetFeatureStatistics(name=newest, num_examples=rows.num_rows.get(newest, 0))
    alone = len(rows.num_rows) == 1 or not last.num_examples
    references = [(reference, _features(reference.statistics)) for reference in data.references if reference.statistics]
    distances: dict[str, list[ColumnDistance]] = {reference.name: [] for reference, _ in references}
    uncompared: dict[str, list[str]] = {reference.words: [] for reference, _ in references}
    periods = _new_periods(data)
    by_period = config.newest if periods.are_enough else None
    period_distances: list[ColumnDistance] = []
    deviations = deviations_for(len(rows.schema))
    for column in rows.columns():
        feature, numbers = column.describe()
        window.features.append(feature)
        if not alone:
            last.features.append(column.describe(newest)[0])
        if by_period is not None and not is_instant(column.dtype) and column.name not in by_period.leave_out:
            distance = period_distance(column, feature, periods, by_period, deviations)
            period_distances += [distance] if distance is not None else []
        for reference, columns in references:
            names = (
                f"{reference.words}, {reference.description}",
                f"this snapshot, {data.periods.looked_at[0]} to {newest}",
            )
            if drift is None or is_instant(column.dtype) or drift.allowed(column.name, is_text=numbers is None) is None:
                continue
            before = columns.get(column.name)
            distance = (
                column_distance(before, feature, numbers, drift, names, deviations) if before is not None else None
            )
            if distance is not None:
                distances[reference.name].append(distance)
            else:
                uncompared[reference.words].append(column.name)
    return _Described(window, None if alone else last, distances, uncompared, period_distances)


def _new_periods(data: Examined) -> Judged:
    """Return the periods that are judged by themselves, and those that say what is usual."""
    return Judged.of(data.rows.periods, _before(data), data.interval_start)


def _with_earlier(data: Examined) -> WindowPeriods:
    """Return the window's periods with what the snapshot that passed last tells of them."""
    before, first = _before(data), data.periods.all[0]
    expected = next((reference.expected for reference in data.references if reference.name == PREVIOUS), ())
    return replace(
        data.periods,
        failed=not_passed(data.rows.periods, before, data.interval_start),
        earlier=[period for period in expected if period < first and period in before],
    )


def _before(data: Examined) -> Mapping[str, int]:
    """Return the rows by period of the snapshot that passed last; empty where there is none to compare with."""
    return next((reference.num_rows for reference in data.references if reference.name == PREVIOUS), None) or {}


def _check_schema(described: _Described, data: Examined, schema: Schema) -> list[Anomaly]:
    """
    Check the window, and the newest period on its own, because in a window of 30 its rows alone would move no share.
    """
    anomalies = check_columns(described.window, schema, data.rows, list(data.rows.num_rows))
    if described.newest is not None:
        known = {(anomaly.column, anomaly.kind) for anomaly in anomalies}
        found = check_columns(described.newest, schema, data.rows, [data.periods.newest], whole=False)
        anomalies += [anomaly for anomaly in found if (anomaly.column, anomaly.kind) not in known]
    return anomalies


def _check_new_periods(
    described: _Described, data: Examined, config: Validate
) -> tuple[list[Anomaly], ReferenceComparison, list[str]]:
    """Check that the new periods are about as far from those before them as these are from each other."""
    periods, grain = _new_periods(data), data.periods.grain
    compared = config.newest is not None and periods.are_enough
    if compared:
        usual = f"{counted(len(periods.usual), grain)} from {periods.usual_name}"
        description = f"{_listed(periods.new, grain)} beside the {usual}"
    elif config.newest is None:
        description = "validate.newest is null"
    else:
        description = (
            f"{len(periods.usual)} of them have rows, and it takes {MIN_PERIODS} to say how far {grain}s usually are "
            "apart"
        )
    columns = [column for column in described.period_distances if column.threshold < FARTHEST]
    anomalies = [unlike_earlier_periods(column, grain) for column in columns if column.distance > column.threshold]
    comparison = ReferenceComparison(
        reference=f"{grain}s before", description=description, compared=compared, columns=tuple(columns)
    )
    blind = [column.column for column in described.period_distances if column.threshold >= FARTHEST]
    notes = [
        f"Not held against the {grain}s before, which are so few or so far from each other that any would pass: "
        f"{shorten(blind)}."
    ]
    return anomalies, comparison, notes if blind else []


def _listed(periods: Sequence[str], grain: Grain) -> str:
    if len(periods) == 1:
        return periods[0]
    return f"{counted(len(periods), grain)} from {periods[0]} to {periods[-1]}, each by itself,"


def _check_slices(
    data: Examined, config: Validate, volume_fits: bool
) -> tuple[list[Anomaly], list[SliceSummary], list[str]]:
    """
    Check the slices of ``validate.slices``.

    :param volume_fits: True if the rows as a whole are as many as expected; else every slice would report the same
    """
    if not config.slices:
        return [], [], []
    newest = data.periods.newest
    if len(data.rows.num_rows) < 2 or newest not in data.rows.num_rows:
        return (
            [],
            [],
            [f"The slices were not checked: there are no rows of {newest} and of a {data.periods.grain} before it."],
        )
    anomalies, slices = [], []
    for column in config.slices:
        found, summaries = check_slices(
            data.rows, data.periods, column, config.volume if volume_fits else None, config.slice_tolerance
        )
        anomalies += found
        slices += summaries
    return anomalies, slices, []


def _check_references(
    described: _Described, data: Examined, config: Validate
) -> tuple[list[Anomaly], list[ReferenceComparison]]:
    """Check for drift; a column that is too far from both references is reported once."""
    if config.drift is None:
        reason = "validate.drift is null"
        return [], [
            ReferenceComparison(reference=reference.name, description=reason, compared=False)
            for reference in data.references
        ]
    anomalies: dict[str, Anomaly] = {}
    comparisons = []
    for reference in data.references:
        columns = described.distances.get(reference.name, ())
        comparisons.append(
            ReferenceComparison(
                reference=reference.name,
                description=reference.description,
                compared=reference.statistics is not None,
                columns=tuple(columns),
            )
        )
        for column in columns:
            if column.distance > column.threshold:
                anomalies.setdefault(column.column, drifted(column, reference.words, "Distribution drifted"))
    return list(anomalies.values()), comparisons


def _check_names(config: Validate, rows: Rows, schema: Schema) -> None:
    """Check that configured columns exist: a mistyped column would be a check that is never made."""
    known = dict.fromkeys([*rows.schema, *schema.columns])
    for keys, column in config.named_columns():
        if column not in known:
            setting = ".".join(key for key in keys[:-1] if not key.isdigit())
            near = difflib.get_close_matches(column, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise BadConfigError(
                f"validate.{setting} names the column {column!r}, which the data does not have; {hint}"
            )


def _features(
    statistics: statistics_pb2.DatasetFeatureStatistics,
) -> dict[str, statistics_pb2.FeatureNameStatistics]:
    return {feature.path.step[0]: feature for feature in statistics.features}
