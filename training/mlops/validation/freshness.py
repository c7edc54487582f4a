"""The check that the newest row is recent enough."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from tensorflow_metadata.proto.v0 import statistics_pb2

from mlops.validation.anomalies import Anomaly

STALE: Final = "STALE"


def check_freshness(
    event_time: statistics_pb2.FeatureNameStatistics, interval_end: str, max_age_hours: float
) -> list[Anomaly]:
    """
    Compare the newest row's event time with the interval's end.

    :param event_time: statistics of the column with the instants
    :param interval_end: ISO 8601
    """
    end = datetime.fromisoformat(interval_end).astimezone(UTC)
    newest = datetime.fromtimestamp(event_time.num_stats.max, UTC)
    age = end - newest
    if age <= timedelta(hours=max_age_hours):
        return []
    return [
        Anomaly(
            column=None,
            kind=STALE,
            title="Not fresh",
            expected=f"rows of the last {max_age_hours:g} hours before {end:%Y-%m-%d %H:%M} UTC",
            found=f"the newest row is of {newest:%Y-%m-%d %H:%M} UTC, {age / timedelta(hours=1):.1f} hours before",
            fix="Find out at the source why nothing came since, and run the ingest again; or, if such a gap is usual, "
            "set validate.max_age_hours to more",
        )
    ]
