"""What the sensors share: defer, and return the ref that the trigger found."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import TaskDeferralTimeout

from mlops.contract.refs import Ref
from mlops.contract.section import SpecError
from mlops_provider.deployment import tenant_of
from mlops_provider.exceptions import StepFailedError, StepRetryableError
from mlops_provider.triggers.base import REFUSED, RefTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class RefSensor(BaseOperator):
    """
    Wait, without holding a worker, for a ref.

    :param team: whose it is, of the teams that share the deployment; the deployment's own if not given
    :param poll_seconds: pause between two looks
    :param wait_timeout: the task fails after this long, and is not tried again; None waits for ever
    """

    found: ClassVar[type[Ref]]
    ui_color = "#f4f0e8"

    def __init__(
        self,
        *,
        team: str | None = None,
        poll_seconds: float = 30,
        wait_timeout: timedelta | None = None,
        # A trigger that fires at once can overtake its own deferral, which Airflow takes for a failure: with a retry
        # nothing is lost, for looking again changes nothing.
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=1),
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        if not self.retries:
            raise ValueError(f"task {self.task_id!r}: a sensor that defers needs retries >= 1, got {self.retries}")
        self.team = team
        tenant_of(team, self._file())
        self.poll_seconds = poll_seconds
        self.wait_timeout = wait_timeout

    @classmethod
    def produces(cls) -> type[Ref]:
        return cls.found

    def trigger(self) -> RefTrigger:
        """What to wait for."""
        raise NotImplementedError

    def _file(self) -> str | None:
        """Return the DAG's file."""
        return self.dag.fileloc if self.has_dag() else None

    def checked_team(self, name: str) -> str | None:
        """
        :param name: of the dataset or the model that is waited for
        :raises StepFailedError: where it is not the team's, or the DAG's file may not name that team
        """
        try:
            why = tenant_of(self.team, self._file()).why_not_name(name)
        except SpecError as error:
            raise StepFailedError(str(error)) from error
        if why is not None:
            raise StepFailedError(f"task {self.task_id!r}: {why}")
        return self.team

    def execute(self, context: Context) -> dict[str, Any]:
        trigger = self.trigger()
        if (ref := asyncio.run(trigger.look())) is not None:
            return ref.to_wire()
        self.defer(trigger=trigger, method_name="resume", timeout=self.wait_timeout)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """
        :raises StepFailedError: where ``wait_timeout`` is over: each retry would wait for as long again
        """
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as error:
            raise StepFailedError(
                f"task {self.task_id!r}: what it waits for did not come within its wait_timeout of "
                f"{self.wait_timeout}: make it, or give a longer wait_timeout, and clear the task"
            ) from error

    def resume(self, context: Context, event: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """
        :raises StepFailedError: where waiting is vain
        :raises StepRetryableError: where the event holds no ref
        """
        if isinstance(event, Mapping) and (why := event.get(REFUSED)) is not None:
            raise StepFailedError(why)
        if not isinstance(event, Mapping) or "ref" not in event:
            raise StepRetryableError(f"the trigger of task {self.task_id!r} sent no ref, but {event!r}")
        return self.found.from_wire(event["ref"]).to_wire()
