from __future__ import annotations

from typing import Any

from mlops_provider.refs import ModelVersionRef
from mlops_provider.registry import RegistryError, find_model_version
from mlops_provider.triggers.base import RefTrigger


class ModelVersionTrigger(RefTrigger):
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
        super().__init__(poll_seconds)
        self.tracking_uri = tracking_uri
        self.model = model
        self.version = version
        self.alias = alias

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("tracking_uri", "model", "version", "alias", "poll_seconds")
        return "mlops_provider.triggers.model.ModelVersionTrigger", {name: getattr(self, name) for name in names}

    async def look(self) -> ModelVersionRef | None:
        """The ref, if it is there now; an unreachable registry has none."""
        try:
            return await find_model_version(self.tracking_uri, self.model, version=self.version, alias=self.alias)
        except RegistryError as error:
            self.log.warning("%s; asking again in %s s", error, self.poll_seconds)
            return None
