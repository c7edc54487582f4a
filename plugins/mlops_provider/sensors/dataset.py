from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from mlops.contract.refs import DatasetRef
from mlops_provider.exceptions import StepFailedError
from mlops_provider.sensors.base import RefSensor
from mlops_provider.triggers.base import RefTrigger
from mlops_provider.triggers.snapshot import SnapshotTrigger


class DatasetSensor(RefSensor):
    """
    Wait for a committed snapshot of a dataset and return its DatasetRef.

    :param dataset: name of the dataset, which is its pipeline's (templated)
    :param interval_end: end of the snapshot's data interval, ISO 8601 with an offset, e.g.
        ``{{ data_interval_end.isoformat() }}``; None takes the latest (templated)
    """

    found = DatasetRef
    template_fields: Sequence[str] = ("dataset", "interval_end")

    def __init__(self, *, dataset: str, interval_end: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset
        self.interval_end = interval_end

    def trigger(self) -> RefTrigger:
        team = self.checked_team(self.dataset)
        if self.interval_end is not None:
            self._check_instant(self.interval_end)
        return SnapshotTrigger(team, self.dataset, self.interval_end, self.poll_seconds)

    def _check_instant(self, interval_end: str) -> None:
        """:raises StepFailedError: where it names no instant: no snapshot is of it, and waiting would never end"""
        try:
            is_instant = datetime.fromisoformat(interval_end).tzinfo is not None
        except (TypeError, ValueError):
            is_instant = False
        if not is_instant:
            raise StepFailedError(
                f"task {self.task_id!r}: interval_end must be an instant in ISO 8601 with an offset, such as "
                f"2013-02-09T05:00:00+00:00, got {interval_end!r}: write {{{{ data_interval_end.isoformat() }}}}"
            )
