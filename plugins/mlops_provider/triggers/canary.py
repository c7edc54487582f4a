from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from mlops_provider.canary import Judgement, MetricsSourceError, judge, live_metrics


class CanaryTrigger(BaseTrigger):
    """
    Fires once, with ``passed`` and ``reason``: when a fail rule holds, or when the time is over.

    A source that cannot be reached is asked again. The end is an argument: another triggerer does not start anew.

    :param settings: :class:`mlops.contract.sections.release.Canary`, as JSON
    :param names: ``model`` and ``version``
    :param until: Unix time
    """

    def __init__(self, settings: Mapping[str, Any], names: Mapping[str, str], until: float) -> None:
        super().__init__()
        self.settings, self.names, self.until = settings, names, until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"settings": dict(self.settings), "names": dict(self.names), "until": self.until}
        return "mlops_provider.triggers.canary.CanaryTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while (judgement := await self._look()) is None:
            await asyncio.sleep(max(0.0, min(self.settings["poll_seconds"], self.until - time.time())))
        yield TriggerEvent({"passed": judgement.passed, "reason": judgement.reason})

    async def _look(self) -> Judgement | None:
        over, live, problem = time.time() >= self.until, None, ""
        try:
            live = await live_metrics(self.settings["source"], self.names)
            self.log.info("[canary] %s", live.values)
            for name, why in live.lacking.items():
                self.log.warning("[canary] no %s: %s", name, why)
        except MetricsSourceError as error:
            problem = str(error)
            self.log.warning("[canary] %s", problem)
        return judge(
            live,
            passes=self.settings["passes"],
            fails=self.settings["fails"],
            min_samples=self.settings["min_samples"],
            over=over,
            problem=problem,
        )
