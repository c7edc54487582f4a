"""Runs that are triggered once, however often they are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import token_hex
from types import MappingProxyType
from typing import Annotated, Any, Self

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Header, Response
from starlette.concurrency import run_in_threadpool

from mlops_provider.api.airflow import Airflow, AirflowDep
from mlops_provider.api.problems import Problem
from mlops_provider.api.rights import rights
from mlops_provider.experiments.names import NOTED, REQUEST
from mlops_provider.local.client import run_place

IdempotencyKey = Annotated[
    str | None, Header(min_length=1, max_length=255, description="Requests with one key of a user are one run")
]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOnce:
    """A run that is asked for. ``before`` comes first; where it finds none, ``trigger``."""

    dag_id: str
    run_id: str
    """The same for each request of this run; or one that no other request has."""
    conf: Mapping[str, Any]
    is_repeatable: bool = True
    """Whether another request may have asked for the same run."""
    mismatch: str = "it was triggered with other parameters"
    """What is wrong where the run has other parameters."""
    pinned: Collection[str] = ()
    """Parameters that a run is given with its trigger where they are not asked for, by what holds at that time."""
    request: str | None = None
    """Digest of a request that was translated into these parameters, and might be into others by now."""

    @classmethod
    def of_key(cls, dag_id: str, prefix: str, conf: Mapping[str, Any], user: str, key: str | None) -> Self:
        """
        :param prefix: begins the run's id
        :param user: whose key it is
        :param key: None: each request is a run of its own
        """
        if key is None:
            own = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}_{token_hex(4)}"
            return cls(dag_id=dag_id, run_id=f"{prefix}{own}", conf=conf, is_repeatable=False)
        digest = hashlib.sha256(f"{user}\n{key}".encode()).hexdigest()[:32]
        mismatch = "the Idempotency-Key was given with another request: give a new one"
        return cls(dag_id=dag_id, run_id=f"{prefix}{digest}", conf=conf, mismatch=mismatch)

    async def found(self, airflow: Airflow) -> Mapping[str, Any] | None:
        """Return the run, where one was asked for before, with whatever parameters."""
        return await airflow.found(run_place(self.dag_id, self.run_id)) if self.is_repeatable else None

    async def before(self, airflow: Airflow) -> Mapping[str, Any] | None:
        """
        Return the run, where it was asked for before.

        :raises Problem: where it has other parameters
        """
        found = await self.found(airflow)
        return None if found is None else self._same(found)

    async def trigger(
        self,
        airflow: Airflow,
        run_after: datetime | None = None,
        noted: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[Mapping[str, Any], bool]:
        """
        Return the run, and whether this request has triggered it.

        :param run_after: None: now
        :param noted: parameters beside those that were asked for: of
            :data:`mlops_provider.experiments.names.NOTED`, or pinned ones
        :raises Problem: where Airflow refuses
        """
        conf = {**self.conf, **noted}
        if self.request is not None and self.is_repeatable:
            conf[REQUEST] = self.request
        body: dict[str, Any] = {"dag_run_id": self.run_id, "logical_date": None, "conf": conf}
        if run_after is not None:
            body["run_after"] = run_after.isoformat()
        try:
            return await airflow.request("POST", f"/dags/{self.dag_id}/dagRuns", json=body), True
        except Problem as error:
            if not self.is_repeatable or error.status != 409:
                raise
            # Another request for it has come first, a moment ago.
            return self._same(await airflow.request("GET", run_place(self.dag_id, self.run_id))), False

    def _same(self, run: Mapping[str, Any]) -> Mapping[str, Any]:
        found = run["conf"] or {}
        is_same = found.get(REQUEST) == self.request
        if is_same and self.request is None:
            unasked = {*NOTED, *self.pinned} - {*self.conf}
            is_same = {name: value for name, value in found.items() if name not in unasked} == self.conf
        if not is_same:
            raise Problem(422, f"{self.dag_id}@{self.run_id}: {self.mismatch}")
        return run


class Asking:
    """A request that starts a run, once however often it is sent with one key; and its answer."""

    def __init__(
        self, airflow: AirflowDep, user: GetUserDep, response: Response, idempotency_key: IdempotencyKey = None
    ) -> None:
        self.airflow = airflow
        self._asker = user
        self._user = user.get_name()
        self._response = response
        self._key = idempotency_key

    def once(self, dag_id: str, prefix: str, conf: Mapping[str, Any]) -> RunOnce:
        """For the parameters see :meth:`RunOnce.of_key`."""
        return RunOnce.of_key(dag_id, prefix, conf, self._user, self._key)

    async def check_may_trigger(self, dag_id: str) -> None:
        """
        Check it before something is kept for a run: Airflow itself says so only when it is triggered.

        :raises Problem: where the asker may not trigger a run of that DAG
        """
        may = await run_in_threadpool(rights, [dag_id], self._asker, "POST")
        if not may(dag_id, "RUN"):
            raise Problem(403, f"you may not trigger {dag_id}: whoever looks after Airflow's rights can let you")
