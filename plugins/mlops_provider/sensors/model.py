from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlops.contract.refs import ModelVersionRef
from mlops_provider.sensors.base import RefSensor
from mlops_provider.triggers.base import RefTrigger
from mlops_provider.triggers.model import ModelVersionTrigger


class ModelVersionSensor(RefSensor):
    """
    Wait for a registered model version, by number or by alias, and return its ModelVersionRef.

    :param model: registered model (templated)
    :param version: its number (templated)
    :param alias: e.g. ``champion``; give either this or ``version`` (templated)
    """

    found = ModelVersionRef
    template_fields: Sequence[str] = ("model", "version", "alias")

    def __init__(self, *, model: str, version: str | None = None, alias: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if (version is None) == (alias is None):
            raise ValueError(f"task {self.task_id!r}: name either version= or alias= of the model, got both or none")
        self.model = model
        self.version = version
        self.alias = alias

    def trigger(self) -> RefTrigger:
        return ModelVersionTrigger(
            self.checked_team(self.model), self.model, self.version, self.alias, self.poll_seconds
        )
