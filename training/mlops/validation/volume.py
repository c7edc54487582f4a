"""The check that every period has rows, and the newest one about as many as an earlier one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2

from mlops.contract.grain import Grain, counted
from mlops.contract.sections.validate import Volume
from mlops.validation.anomalies import Anomaly, shorten
from mlops.validation.validator import validate_statistics
from mlops.validation.window_periods import WindowPeriods

EMPTY_PERIOD: Final = "EMPTY_PERIOD"
VOLUME_CHANGED: Final = "VOLUME_AGAINST_PREVIOUS"
PERIOD_CHANGED: Final = "PERIOD_CHANGED"
NOT_COMPARABLE: Final = "VOLUME_NOT_COMPARABLE"


def check_periods(periods: WindowPeriods, num_rows: Mapping[str, int]) -> list[Anomaly]:
    """
    Find periods without rows in which there must be some: TFDV finds nothing wrong with no data.

    :param num_rows: rows by period
    """
    first, last, grain = periods.all[0], periods.all[-1], periods.grain
    if periods.gaps is None:
        empty = [period for period in periods.expected if not num_rows.get(period)]
        of_calendar = "" if len(periods.expected) == len(periods.all) else " that ingest.calendar names"
        expected = f"rows on every {grain}{of_calendar} from {first} to {last}"
    else:
        empty = _too_many_in_a_row(periods.all, num_rows, periods.gaps)
        expected = f"at most {counted(periods.gaps, grain)} without rows in a row (ingest.calendar)"
    if not empty:
        return []
    several = f"{counted(len(empty), grain)} have no rows: {shorten(empty)}"
    found = f"{empty[0]} has no rows" if len(empty) == 1 else several
    if not any(num_rows.get(period) for period in periods.all):
        found = (
            f"the snapshot is empty: none of its {counted(len(periods.all), grain)}, from {first} to {last}, has rows"
        )
    return [
        Anomaly(
            column=None,
            kind=EMPTY_PERIOD,
            title=f"{grain.capitalize()}s without rows",
            expected=expected,
            found=found,
            periods=tuple(empty),
            fix="If the source has no older data yet, make ingest.window smaller, or let the DAG start later; if "
            f"nothing happens on such {grain}s, say so in ingest.calendar; else load the missing {grain}s at the "
            "source and run the ingest again",
        )
    ]


def _too_many_in_a_row(periods: Sequence[str], num_rows: Mapping[str, int], gaps: int) -> list[str]:
    runs = [list(run) for has_rows, run in groupby(periods, lambda period: bool(num_rows.get(period))) if not has_rows]
    return [period for run in runs if len(run) > gaps for period in run]


def compared_periods(periods: WindowPeriods, num_rows: Mapping[str, int], config: Volume) -> dict[str, str | None]:
    """
    Return the periods whose rows are judged, and with which earlier one each is compared; None: with none.

    They are the newest one, and before it each of an earlier night that did not pass: it is still in the window, and
    what the source lost of it would be learnt from the night after. Periods without rows are left to
    :func:`check_periods`.

    :raises BadConfigError: where ``against`` is longer than the window
    """
    alike = {period: periods.alike(period, config) for period in (*periods.failed, periods.newest)}
    return {period: _compared(period, alike[period], num_rows, config) for period in alike if num_rows.get(period)}


def _compared(period: str, alike: Sequence[str], num_rows: Mapping[str, int], config: Volume) -> str | None:
    """Return the last one of its kind; the one before it where that may have been a holiday."""
    last = next(iter(alike), None)
    before = alike[1:2] if config.against is None else []
    if last is None or not num_rows.get(last) or not _has_drifted(num_rows[period], num_rows[last], config):
        return last
    fitting = (
        each for each in before if num_rows.get(each) and not _has_drifted(num_rows[period], num_rows[each], config)
    )
    return next(fitting, last)


def check_volume(
    compared: Mapping[str, str | None], periods: WindowPeriods, num_rows: Mapping[str, int], config: Volume
) -> list[Anomaly]:
    """
    Compare periods' rows with those of earlier ones, by TFDV's ``num_examples_drift_comparator``.

    :param compared: see :func:`compared_periods`
    :param num_rows: rows by period, also by those before the window
    """
    return [
        anomaly
        for period, earlier in compared.items()
        if earlier is not None
        for anomaly in _check_period(period, earlier, periods, num_rows, config)
    ]


def _check_period(
    period: str, earlier: str, periods: WindowPeriods, num_rows: Mapping[str, int], config: Volume
) -> list[Anomaly]:
    # Without previous statistics TFDV would skip the check in silence.
    if not num_rows.get(earlier):
        return [
            Anomaly(
                column=None,
                kind=NOT_COMPARABLE,
                title="Volume cannot be checked",
                expected=f"rows on {earlier}, to compare {period} with",
                found=f"{period} has {num_rows[period]} rows, {earlier} had none: the volume cannot be compared",
                periods=(earlier,),
                fix=f"Load {earlier} at the source and run the ingest again, or change validate.volume.against",
            )
        ]
    if not _has_drifted(num_rows[period], num_rows[earlier], config):
        return []
    ratio = num_rows[period] / num_rows[earlier]
    name = anomalies_pb2.AnomalyInfo.Type.Name
    info = anomalies_pb2.AnomalyInfo
    return [
        Anomaly(
            column=None,
            kind=name(info.COMPARATOR_LOW_NUM_EXAMPLES if ratio < 1 else info.COMPARATOR_HIGH_NUM_EXAMPLES),
            title="Too few rows" if ratio < 1 else "Too many rows",
            expected=f"{_rows(num_rows[earlier] * config.low)} to {_rows(num_rows[earlier] * config.high)} rows",
            found=f"{period} has {num_rows[period]} rows, {earlier} had {num_rows[earlier]}: "
            f"ratio {ratio:.3f} is outside {config.low:g} .. {config.high:g}",
            periods=(period,),
            fix=_advice(period, earlier, periods, num_rows, config),
        )
    ]


def check_against_previous(
    periods: WindowPeriods, num_rows: Mapping[str, int], before: Mapping[str, int], config: Volume
) -> list[Anomaly]:
    """
    Compare with the previous snapshot: the rows a period of the two windows, and every period that both hold.

    :param before: the previous snapshot's rows by period; it passed, so that it had rows on all such periods
    """
    grain = periods.grain
    changed = [
        period
        for period in periods.looked_at
        if num_rows.get(period) and before.get(period) and _has_drifted(num_rows[period], before[period], config)
    ]
    if changed:
        worst = max(changed, key=lambda period: abs(num_rows[period] / before[period] - 1))
        also = f" ({counted(len(changed), grain)} changed so: {shorten(changed)})" if len(changed) > 1 else ""
        return [
            Anomaly(
                column=None,
                kind=PERIOD_CHANGED,
                title=f"{_one(grain).capitalize()} has other rows than before",
                expected=f"{_rows(before[worst] * config.low)} to {_rows(before[worst] * config.high)} rows on {worst}",
                found=f"{worst} has {num_rows[worst]} rows, and had {before[worst]} in the previous snapshot{also}",
                periods=tuple(changed),
                fix="Find out at the source what was corrected or lost. If it is right, run this night with "
                f"{_admitting(num_rows[worst] / before[worst])}; else load the {grain}s again at the source and run "
                "the ingest again",
            )
        ]
    total, total_before = sum(num_rows.values()), sum(before.values())
    # Rows a period: the window may have become longer or shorter.
    a_period, a_period_before = total / len(periods.looked_at), total_before / len(before)
    if not total or config.low <= a_period / a_period_before <= config.high:
        return []
    return [
        Anomaly(
            column=None,
            kind=VOLUME_CHANGED,
            title="Too few rows" if a_period < a_period_before else "Too many rows",
            expected=f"{_rows(a_period_before * config.low)} to {_rows(a_period_before * config.high)} rows "
            f"{_one(grain)}",
            found=f"the window has {_rows(a_period)} rows {_one(grain)}, the previous snapshot had "
            f"{_rows(a_period_before)}: "
            f"ratio {a_period / a_period_before:.3f} is outside {config.low:g} .. {config.high:g}",
            fix=f"If the source delivered everything, run this night with {_admitting(a_period / a_period_before)}; "
            f"else load the {grain}s again at the source and run the ingest again",
        )
    ]


def _advice(period: str, earlier: str, periods: WindowPeriods, num_rows: Mapping[str, int], config: Volume) -> str:
    advice = (
        f"If the source delivered all of {period} (a holiday, a storm), run this night with "
        f"{_admitting(num_rows[period] / num_rows[earlier])}; else load the {periods.grain} again at the source and "
        "run the ingest again"
    )
    alike = next(iter(periods.alike(period, config.model_copy(update={"against": None}))), None)
    usual = num_rows.get(alike) if alike is not None else None
    if alike != earlier and usual and not _has_drifted(num_rows[period], usual, config):
        # Most such nights are Saturdays.
        kind = "weekday" if periods.grain == "day" else "time"
        advice = (
            f"{alike}, which is of its kind, had {usual} rows: it may be the {kind}. If so, leave out "
            f"validate.volume.against. {advice}"
        )
    return advice


def _admitting(*ratios: float) -> str:
    """Return the setting with which such numbers of rows pass."""
    tolerance = max(math.ceil(round(100 * abs(ratio - 1), 6)) for ratio in ratios) / 100
    return f"validate.volume.tolerance: {tolerance:g}" if tolerance < 1 else "validate.volume: null"


def _has_drifted(num_rows: int, num_rows_before: int, config: Volume) -> bool:
    # The comparator never sees columns: a schema and statistics without any are all it needs.
    schema = schema_pb2.Schema()
    comparator = schema.dataset_constraints.num_examples_drift_comparator
    comparator.min_fraction_threshold, comparator.max_fraction_threshold = config.low, config.high
    now = statistics_pb2.DatasetFeatureStatistics(num_examples=num_rows)
    before = statistics_pb2.DatasetFeatureStatistics(num_examples=num_rows_before)
    return bool(validate_statistics(now, schema, before).HasField("dataset_anomaly_info"))


def _one(grain: Grain) -> str:
    return f"{'an' if grain == 'hour' else 'a'} {grain}"


def _rows(value: float) -> str:
    return f"{round(value):,}"
