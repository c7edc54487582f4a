from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from mlops.contract.refs import ModelVersionRef
from mlops.contract.sections.release import Canary
from mlops_provider.exceptions import CanaryFailedError, StepRetryableError
from mlops_provider.operators.promote import move
from mlops_provider.operators.transition import TransitionOperator
from mlops_provider.triggers.canary import CanaryTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

UNTIL = "until"
"""In the task's state: when the canary ends. A retry goes on, it does not begin again."""


class CanaryOperator(TransitionOperator):
    """
    Give a version the alias ``canary``, wait for its live metrics without holding a worker, and judge them. A canary
    that fails is archived, and fails the task.

    Settings: :class:`mlops.contract.sections.release.Canary`. Returns the ModelVersionRef.

    :param version: the ModelVersionRef (templated)
    """

    step = "promote"
    section = Canary

    def __init__(self, *, version: XComArg | Mapping[str, Any] | str, **kwargs: Any) -> None:
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
        super().execute(context)
        until = context["task_state_store"].get(UNTIL)
        if until is None:
            until = time.time() + 60 * self.settings["minutes"]
            context["task_state_store"].set(UNTIL, until)
        names = {"model": version.name, "version": version.version}
        self.defer(trigger=CanaryTrigger(self.settings, names, float(until)), method_name="judged")  # type: ignore[arg-type]

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
