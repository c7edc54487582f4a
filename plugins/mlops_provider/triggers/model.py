from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from mlops_provider.registry import RegistryError, find_model_version


class ModelVersionTrigger(BaseTrigger):
    """
    Fires with the ref of a registered model version. An unreachable registry is waited for.

    :param tracking_uri: MLflow server
    :param model: registered model
    :param version: number, or None to wait for ``alias``
    :param alias: e.g. ``champion``
    :param poll_seconds: pause between two looks
    """

    def __init__(
        self, tracking_uri: str, model: str, version: str | None, alias: str | None, poll_seconds: float
    ) -> None:
        super().__init__()
        self.tracking_uri = tracking_uri
        self.model = model
        self.version = version
        self.alias = alias
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("tracking_uri", "model", "version", "alias", "poll_seconds")
        return "mlops_provider.triggers.model.ModelVersionTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while True:
            try:
                ref = await find_model_version(self.tracking_uri, self.model, version=self.version, alias=self.alias)
            except RegistryError as error:
                self.log.warning("%s; asking again in %s s", error, self.poll_seconds)
                ref = None
            if ref is not None:
                yield TriggerEvent({"ref": ref.to_wire()})
                return
            await asyncio.sleep(self.poll_seconds)
