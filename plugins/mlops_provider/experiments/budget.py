"""What a search may cost where somebody says so while it runs, and how its run is told: by an object of the store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Self

import obstore
from obstore.store import ObjectStore
from pydantic import BaseModel, ConfigDict, ValidationError

from mlops.contract.section import SpecError
from mlops.contract.sections.tune import Tune
from mlops_provider.committed import read_bytes


class Budget(BaseModel):
    """Another end of a search than it was asked for. None: as it was asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trials: int | None = None
    """At most so many in all."""
    hours: float | None = None
    gpu_hours: float | None = None
    is_stopped: bool = False
    """Whether no more trials begin."""
    most_trials: int = 0
    """The most that it ever allowed: so many may have begun."""

    @classmethod
    async def read(cls, store: ObjectStore, place: str, run_id: str) -> Self:
        """
        :param place: of the experiment
        :param run_id: Airflow's
        :raises SpecError: where it is damaged
        """
        key = _key(place, run_id)
        data = await read_bytes(store, key)
        try:
            return cls() if data is None else cls.model_validate_json(data)
        except ValidationError:
            raise SpecError(f"{key} is damaged: give the study its budget again, or delete it") from None

    async def write(self, store: ObjectStore, place: str, run_id: str) -> None:
        await obstore.put_async(store, _key(place, run_id), self.model_dump_json().encode())

    def changed(self, **change: Any) -> Self:
        """Return another budget, after this one."""
        found = self.model_copy(update=change)
        return found.model_copy(update={"most_trials": max(self.most_trials, found.trials or 0)})

    @property
    def widest(self) -> Self:
        """With all trials that may have begun."""
        return self.model_copy(update={"trials": self.most_trials, "is_stopped": False})

    def of(self, tune: Tune, num_begun: int) -> Tune:
        """
        Return a search with this budget: what the step ``tune`` concludes is of as many trials as it says.

        :param num_begun: trials that have begun: they count
        """
        asked = tune.num_trials if self.trials is None else self.trials
        trials = max(num_begun, 1 if self.is_stopped else asked)
        given = self.model_dump(include={"hours", "gpu_hours"}, exclude_none=True)
        return tune.model_copy(update={"trials": trials, **given})

    def __str__(self) -> str:
        """For people."""
        return ", ".join(self._said()) or "as it was asked for"

    def _said(self) -> Iterator[str]:
        if self.is_stopped:
            yield "begins no more trials"
        if self.trials is not None:
            yield f"{self.trials} {'trial' if self.trials == 1 else 'trials'} at most"
        if self.hours is not None:
            yield f"{self.hours:g} h"
        if self.gpu_hours is not None:
            yield f"{self.gpu_hours:g} GPU hours"


def _key(place: str, run_id: str) -> str:
    # A run's name may have any letters.
    return f"{place}/budgets/{hashlib.sha256(run_id.encode()).hexdigest()[:32]}.json"
