"""What the triggers share: look, sleep, look again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from airflow.triggers.base import BaseTrigger, TriggerEvent

from mlops_provider.refs import Ref


class RefTrigger(BaseTrigger):
    """
    Fires once, with the wire form of a ref under ``ref``.

    :param poll_seconds: pause between two looks
    """

    def __init__(self, poll_seconds: float) -> None:
        super().__init__()
        self.poll_seconds = poll_seconds

    async def look(self) -> Ref | None:
        """The ref, if it is there now. Called by the sensor once, then by the triggerer."""
        raise NotImplementedError

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while (ref := await self.look()) is None:
            await asyncio.sleep(self.poll_seconds)
        yield TriggerEvent({"ref": ref.to_wire()})
