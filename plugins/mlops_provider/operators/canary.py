from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from mlops.contract.refs import ModelVersionRef
from mlops.contract.sections.release import Canary
from mlops.signing.seals import ENTRY
from mlops_provider.exceptions import CanaryFailedError, StepFailedError, StepRetryableError
from mlops_provider.operators.promote import move
from mlops_provider.operators.transition import TransitionOperator
from mlops_provider.triggers.canary import CanaryTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class CanaryOperator(TransitionOperator):
    """
    Give a version the alias ``canary``, wait for its live metrics without holding a worker, and judge them. A canary
    that fails is archived, and fails the task.

    Settings: :class:`mlops.contract.sections.release.Canary`. Returns the ModelVersionRef.

    :param version: the ModelVersionRef (templated)
    :param registered_model: its name; that of the DAG's register or promote if not given
    """

    step = "promote"
    section = Canary

    def __init__(
        self, *, version: XComArg | Mapping[str, Any] | str, registered_model: str | None = None, **kwargs: Any
    ) -> None:
        self.registered_model = registered_model
        super().__init__(upstream=version, deferrable=False, **kwargs)
        # A trigger that fires at once can overtake its own deferral, which Airflow takes for a failure.
        if not self.retries:
            raise ValueError(f"task {self.task_id!r}: a canary needs retries >= 1, got {self.retries}")
        self.asked: dict[str, Any] = {}

    def config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return self.asked

    def execute(self, context: Context) -> dict[str, Any]:
        version = ModelVersionRef.from_wire(self.upstream)
        self.asked = move("canary", why=f"live for {self.settings['minutes']:g} minutes")
        made = ModelVersionRef.from_wire(super().execute(context))
        until = self.patience(context).with_work(lambda: self._end(made))
        names = {"model": version.name, "version": version.version}
        self.defer(trigger=CanaryTrigger(self.settings, names, until), method_name="judged")

    def _end(self, made: ModelVersionRef) -> float:
        """
        Return when the canary ends, as Unix time: by the entry that says when it began, which is signed. A retry goes
        on, it does not begin again, and nobody shortens it by editing the task's state.
        """
        from mlops_provider.committed import read_artifact
        from mlops_provider.connections import store_of
        from mlops_provider.patience import store_errors

        seconds, artifact = 60 * float(self.settings["minutes"]), made.artifacts.get(ENTRY)
        if artifact is None:  # it was the canary already, by another task: this one has it watched as long as its own
            return time.time() + seconds
        deployment = self._deployment()
        with store_errors(deployment.store, f"task {self.task_id!r} cannot read the audit trail"):
            data = asyncio.run(read_artifact(store_of(deployment), artifact))
        entry = {} if data is None else json.loads(data)
        if (entry.get("action"), entry.get("version")) != ("canary", made.version):
            raise StepFailedError(
                f"task {self.task_id!r}: {artifact.key} in {deployment.store} is not the entry by which version "
                f"{made.version} of {made.name} became the canary: see `mlops audit verify {made.name}`"
            )
        return datetime.fromisoformat(entry["stages"]["live"][made.version]["since"]).timestamp() + seconds

    def judged(self, context: Context, event: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """
        Called when the trigger has judged.

        :raises CanaryFailedError: where the canary failed, and is archived
        """
        if not isinstance(event, Mapping) or not {"passed", "reason"} <= event.keys():
            raise StepRetryableError(f"the trigger of task {self.task_id!r} sent no judgement, but {event!r}")
        version = ModelVersionRef.from_wire(self.upstream)
        if event["passed"]:
            self.log.info("%s", event["reason"])
            return version.to_wire()
        self.asked = move("archive", why=f"the canary failed: {event['reason']}")
        super().execute(context)
        raise CanaryFailedError(
            f"version {version.version} of {version.name} is archived, its canary failed: {event['reason']}"
        )
