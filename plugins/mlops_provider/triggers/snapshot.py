from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from obstore.exceptions import BaseError

from mlops.contract.outages import FailureClass, classify_store_error, store_cause
from mlops.contract.refs import DatasetRef
from mlops_provider.committed import find_snapshot
from mlops_provider.connections import store_of
from mlops_provider.deployment import Deployment
from mlops_provider.triggers.base import RefTrigger


class SnapshotTrigger(RefTrigger):
    """
    Fires with the ref of a committed snapshot. A store that is away is waited for.

    :param team: whose store is looked into; None: the deployment's own
    :param pipeline: whose dataset
    :param interval_end: ISO 8601; None takes any
    :param poll_seconds: pause between two looks
    """

    def __init__(self, team: str | None, pipeline: str, interval_end: str | None, poll_seconds: float) -> None:
        super().__init__(poll_seconds)
        self.team = team
        self.pipeline = pipeline
        self.interval_end = interval_end

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("team", "pipeline", "interval_end", "poll_seconds")
        return "mlops_provider.triggers.snapshot.SnapshotTrigger", {name: getattr(self, name) for name in names}

    async def look(self) -> DatasetRef | None:
        """The ref, if it is there now."""
        deployment = Deployment.load(self.team)
        try:
            return await find_snapshot(await sync_to_async(store_of)(deployment), self.pipeline, self.interval_end)
        except BaseError as error:
            if classify_store_error(error) is not FailureClass.AWAY:
                raise
            self.log.warning(
                "the store %s: %s; asking again in %s s", deployment.store, store_cause(error), self.poll_seconds
            )
            return None
