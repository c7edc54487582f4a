"""The check that every period has rows, and the newest one about as many as an earlier one."""

from __future__ import annotations

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


def check_volume(periods: WindowPeriods, num_rows: Mapping[str, int], config: Volume) -> list[Anomaly]:
    """
    Compare the newest period's rows with an earlier one's, by TFDV's ``num_examples_drift_comparator``.

    So is each period of an earlier night that did not pass: it is still in the window, and what the source lost of it
    would be learnt from the night after. Periods without rows are left to :func:`check_periods`.

    :raises BadConfigError: where the earlier period lies before the window
    """
    judged = [period for period in (*periods.failed, periods.newest) if num_rows.get(period)]
    return [anomaly for period in judged for anomaly in _check_period(period, periods, num_rows, config)]


def _check_period(period: str, periods: WindowPeriods, num_rows: Mapping[str, int], config: Volume) -> list[Anomaly]:
    earlier = periods.compared(config, period)
    if earlier is None:
        return []
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
            fix=_advice(period, periods, num_rows, config),
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
                fix="Find out at the source what was corrected or lost. If it is right, run this night with a larger "
                f"validate.volume.tolerance; else load the {grain}s again at the source and run the ingest again",
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
            fix="If the source delivered everything, run this night with a larger validate.volume.tolerance; else load "
            f"the {grain}s again at the source and run the ingest again",
        )
    ]


def _advice(period: str, periods: WindowPeriods, num_rows: Mapping[str, int], config: Volume) -> str:
    advice = (
        f"If the source delivered all of {period} (a holiday, a storm), run this night with a larger "
        f"validate.volume.tolerance; else load the {periods.grain} again at the source and run the ingest again"
    )
    alike = periods.compared(config.model_copy(update={"against": None}), period)
    usual = num_rows.get(alike) if alike is not None else None
    has_other = config.against is not None and alike != periods.compared(config, period)
    if has_other and usual and not _has_drifted(num_rows[period], usual, config):
        # Most such nights are Saturdays.
        kind = "weekday" if periods.grain == "day" else "time"
        advice = (
            f"{alike}, which is of its kind, had {usual} rows: it may be the {kind}. If so, leave out "
            f"validate.volume.against. {advice}"
        )
    return advice


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
