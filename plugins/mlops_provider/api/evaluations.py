"""What an evaluation has returned as its XCom, which who may edit XComs can change."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from mlops.contract.refs import DatasetRef, ReportRef
from mlops.contract.rest import Judged
from mlops.contract.results import CANDIDATE, CHAMPION, DIFFERENCE
from mlops_provider.links import report_url


def evaluation_of(returned: Any) -> ReportRef | None:
    """Return an evaluation; None where somebody has put something else there, or an XCom backend keeps it elsewhere."""
    try:
        report = ReportRef.from_wire(returned)
        interval_of(report)
    except (ValueError, TypeError):
        return None
    return report if isinstance(report.metrics, Mapping) else None


def interval_of(report: ReportRef) -> tuple[datetime, datetime]:
    """Return the data's interval."""
    snapshot = report.ancestor(DatasetRef)
    return datetime.fromisoformat(snapshot.interval_start), datetime.fromisoformat(snapshot.interval_end)


def judged(report: ReportRef) -> Judged:
    """
    Say how the model of a night was judged.

    :raises ValueError: where somebody has edited it so that it is no such thing
    """
    metrics = report.metrics
    metric = next((name for name in metrics if f"{CANDIDATE}{name}" in metrics), None)
    page = report.artifacts.get("report")
    return Judged(
        interval=interval_of(report),
        passed=report.passed,
        reason=report.reason,
        metric=metric,
        value=metrics.get(f"{CANDIDATE}{metric}"),
        champion=report.champion,
        champion_value=metrics.get(f"{CHAMPION}{metric}"),
        difference=metrics.get(f"{DIFFERENCE}{metric}"),
        difference_low=metrics.get(f"{DIFFERENCE}{metric}.low"),
        difference_high=metrics.get(f"{DIFFERENCE}{metric}.high"),
        report=None if page is None else report_url(page.key),
    )
