from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from mlops_provider.committed import find_snapshot, open_store


class SnapshotTrigger(BaseTrigger):
    """
    Fires with the ref of a committed snapshot.

    :param store: URI of the object store
    :param pipeline: whose dataset
    :param interval_end: ISO 8601; None takes any
    :param poll_seconds: pause between two looks
    """

    def __init__(self, store: str, pipeline: str, interval_end: str | None, poll_seconds: float) -> None:
        super().__init__()
        self.store = store
        self.pipeline = pipeline
        self.interval_end = interval_end
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("store", "pipeline", "interval_end", "poll_seconds")
        return "mlops_provider.triggers.snapshot.SnapshotTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        store = open_store(self.store)
        while (ref := await find_snapshot(store, self.pipeline, self.interval_end)) is None:
            await asyncio.sleep(self.poll_seconds)
        yield TriggerEvent({"ref": ref.to_wire()})
