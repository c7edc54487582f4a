from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlops.contract.refs import DatasetRef
from mlops_provider.sensors.base import RefSensor
from mlops_provider.triggers.base import RefTrigger
from mlops_provider.triggers.snapshot import SnapshotTrigger


class DatasetSensor(RefSensor):
    """
    Wait for a committed snapshot of a dataset and return its DatasetRef.

    :param dataset: name of the dataset, which is its pipeline's (templated)
    :param interval_end: end of the snapshot's data interval, ISO 8601, e.g. ``{{ data_interval_end.isoformat() }}``;
        None takes the latest (templated)
    """

    found = DatasetRef
    template_fields: Sequence[str] = ("dataset", "interval_end")

    def __init__(self, *, dataset: str, interval_end: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset
        self.interval_end = interval_end

    def trigger(self) -> RefTrigger:
        return SnapshotTrigger(self.checked_team(self.dataset), self.dataset, self.interval_end, self.poll_seconds)
