"""The check that every day has rows, and the newest day about as many as an earlier one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from itertools import groupby
from typing import Final

from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2

from mlops.contract.sections.calendar import DAYS_OF_A_WEEK
from mlops.contract.sections.validate import Volume
from mlops.validation.anomalies import Anomaly, shorten
from mlops.validation.validator import validate_statistics
from mlops.validation.window_days import WindowDays

EMPTY_DAY: Final = "EMPTY_DAY"
VOLUME_CHANGED: Final = "VOLUME_AGAINST_PREVIOUS"
DAY_CHANGED: Final = "DAY_CHANGED"
NOT_COMPARABLE: Final = "VOLUME_NOT_COMPARABLE"


def check_days(days: WindowDays, num_rows: Mapping[str, int]) -> list[Anomaly]:
    """
    Find days without rows on which there must be some: TFDV finds nothing wrong with no data.

    :param num_rows: rows by day
    """
    first, last = days.calendar[0], days.calendar[-1]
    if days.gaps is None:
        empty = [day for day in days.expected if not num_rows.get(day)]
        of_calendar = "" if len(days.expected) == len(days.calendar) else " that ingest.calendar names"
        expected = f"rows on every day{of_calendar} from {first} to {last}"
    else:
        empty = _too_many_in_a_row(days.calendar, num_rows, days.gaps)
        expected = f"at most {days.gaps} days without rows in a row (ingest.calendar)"
    if not empty:
        return []
    found = f"{empty[0]} has no rows" if len(empty) == 1 else f"{len(empty)} days have no rows: {shorten(empty)}"
    if not any(num_rows.get(day) for day in days.calendar):
        found = f"the snapshot is empty: none of its {len(days.calendar)} days, from {first} to {last}, has rows"
    return [
        Anomaly(
            column=None,
            kind=EMPTY_DAY,
            title="Days without rows",
            expected=expected,
            found=found,
            days=tuple(empty),
            fix="If the source has no older data yet, make ingest.window_days smaller, or let the DAG start later; if "
            "nothing happens on such days, say so in ingest.calendar; else load the missing days at the source and run "
            "the ingest again",
        )
    ]


def _too_many_in_a_row(days: Sequence[str], num_rows: Mapping[str, int], gaps: int) -> list[str]:
    runs = [list(run) for has_rows, run in groupby(days, lambda day: bool(num_rows.get(day))) if not has_rows]
    return [day for run in runs if len(run) > gaps for day in run]


def check_volume(days: WindowDays, num_rows: Mapping[str, int], config: Volume) -> list[Anomaly]:
    """
    Compare the newest day's rows with an earlier day's, by TFDV's ``num_examples_drift_comparator``.

    A newest day without rows is left to :func:`check_days`.

    :raises BadConfigError: where the earlier day lies before the window
    """
    newest, earlier = days.newest, days.compared(config)
    if earlier is None or not num_rows.get(newest):
        return []
    # Without previous statistics TFDV would skip the check in silence.
    if not num_rows.get(earlier):
        return [
            Anomaly(
                column=None,
                kind=NOT_COMPARABLE,
                title="Volume cannot be checked",
                expected=f"rows on {earlier}, to compare {newest} with",
                found=f"{newest} has {num_rows[newest]} rows, {earlier} had none: the volume cannot be compared",
                days=(earlier,),
                fix=f"Load {earlier} at the source and run the ingest again, or change validate.volume.against_days",
            )
        ]
    if not _has_drifted(num_rows[newest], num_rows[earlier], config):
        return []
    ratio = num_rows[newest] / num_rows[earlier]
    name = anomalies_pb2.AnomalyInfo.Type.Name
    info = anomalies_pb2.AnomalyInfo
    return [
        Anomaly(
            column=None,
            kind=name(info.COMPARATOR_LOW_NUM_EXAMPLES if ratio < 1 else info.COMPARATOR_HIGH_NUM_EXAMPLES),
            title="Too few rows" if ratio < 1 else "Too many rows",
            expected=f"{_rows(num_rows[earlier] * config.low)} to {_rows(num_rows[earlier] * config.high)} rows",
            found=f"{newest} has {num_rows[newest]} rows, {earlier} had {num_rows[earlier]}: "
            f"ratio {ratio:.3f} is outside {config.low:g} .. {config.high:g}",
            days=(newest,),
            fix=_advice(days, num_rows, config),
        )
    ]


def check_against_previous(
    days: Sequence[str], num_rows: Mapping[str, int], before: Mapping[str, int], config: Volume
) -> list[Anomaly]:
    """
    Compare with the previous snapshot: the rows a day of the two windows, and every day that both hold.

    :param days: those on which there must be rows, or are some
    :param before: the previous snapshot's rows by day; it passed, so that it had rows on all such days
    """
    changed = [
        day
        for day in days
        if num_rows.get(day) and before.get(day) and _has_drifted(num_rows[day], before[day], config)
    ]
    if changed:
        worst = max(changed, key=lambda day: abs(num_rows[day] / before[day] - 1))
        also = f" ({len(changed)} days changed so: {shorten(changed)})" if len(changed) > 1 else ""
        return [
            Anomaly(
                column=None,
                kind=DAY_CHANGED,
                title="A day has other rows than before",
                expected=f"{_rows(before[worst] * config.low)} to {_rows(before[worst] * config.high)} rows on {worst}",
                found=f"{worst} has {num_rows[worst]} rows, and had {before[worst]} in the previous snapshot{also}",
                days=tuple(changed),
                fix="Find out at the source what was corrected or lost. If it is right, run this night with a larger "
                "validate.volume.tolerance; else load the days again at the source and run the ingest again",
            )
        ]
    total, total_before = sum(num_rows.values()), sum(before.values())
    # Rows a day: the window may have become longer or shorter.
    a_day, a_day_before = total / len(days), total_before / len(before)
    if not total or config.low <= a_day / a_day_before <= config.high:
        return []
    return [
        Anomaly(
            column=None,
            kind=VOLUME_CHANGED,
            title="Too few rows" if a_day < a_day_before else "Too many rows",
            expected=f"{_rows(a_day_before * config.low)} to {_rows(a_day_before * config.high)} rows a day",
            found=f"the window has {_rows(a_day)} rows a day, the previous snapshot had {_rows(a_day_before)}: "
            f"ratio {a_day / a_day_before:.3f} is outside {config.low:g} .. {config.high:g}",
            fix="If the source delivered everything, run this night with a larger validate.volume.tolerance; else load "
            "the days again at the source and run the ingest again",
        )
    ]


def _advice(days: WindowDays, num_rows: Mapping[str, int], config: Volume) -> str:
    newest = days.newest
    advice = (
        f"If the source delivered all of {newest} (a holiday, a storm), run this night with a larger "
        "validate.volume.tolerance; else load the day again at the source and run the ingest again"
    )
    week_before = str(date.fromisoformat(newest) - timedelta(days=DAYS_OF_A_WEEK))
    usual = num_rows.get(week_before)
    if (config.against_days or 0) % DAYS_OF_A_WEEK and usual and not _has_drifted(num_rows[newest], usual, config):
        # Most such nights are Saturdays.
        advice = (
            f"A week before, {week_before} had {usual} rows: it may be the weekday. If so, leave out "
            f"validate.volume.against_days. {advice}"
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


def _rows(value: float) -> str:
    return f"{round(value):,}"
