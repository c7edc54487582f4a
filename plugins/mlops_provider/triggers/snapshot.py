from __future__ import annotations

from typing import Any

from mlops_provider.committed import find_snapshot, open_store
from mlops_provider.refs import DatasetRef
from mlops_provider.triggers.base import RefTrigger


class SnapshotTrigger(RefTrigger):
    """
    Fires with the ref of a committed snapshot.

    :param store: URI of the object store
    :param pipeline: whose dataset
    :param interval_end: ISO 8601; None takes any
    :param poll_seconds: pause between two looks
    """

    def __init__(self, store: str, pipeline: str, interval_end: str | None, poll_seconds: float) -> None:
        super().__init__(poll_seconds)
        self.store = store
        self.pipeline = pipeline
        self.interval_end = interval_end

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("store", "pipeline", "interval_end", "poll_seconds")
        return "mlops_provider.triggers.snapshot.SnapshotTrigger", {name: getattr(self, name) for name in names}

    async def look(self) -> DatasetRef | None:
        """The ref, if it is there now."""
        return await find_snapshot(open_store(self.store), self.pipeline, self.interval_end)
