"""What the triggers share: look, sleep, look again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from airflow.triggers.base import BaseTrigger, TriggerEvent

from mlops.contract.refs import Ref
from mlops_provider.exceptions import StepFailedError

REFUSED = "refused"
"""In an event: why there will be no ref, however often one looks."""


class RefTrigger(BaseTrigger):
    """
    Fires once, with the wire form of a ref under ``ref``, or with what makes waiting vain under ``refused``.

    :param poll_seconds: pause between two looks
    """

    def __init__(self, poll_seconds: float) -> None:
        super().__init__()
        self.poll_seconds = poll_seconds

    async def look(self) -> Ref | None:
        """
        The ref, if it is there now. Called by the sensor once, then by the triggerer.

        :raises StepFailedError: where looking again cannot help
        """
        raise NotImplementedError

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            while (ref := await self.look()) is None:
                await asyncio.sleep(self.poll_seconds)
        except StepFailedError as error:
            yield TriggerEvent({REFUSED: str(error)})
            return
        yield TriggerEvent({"ref": ref.to_wire()})
