"""Find or create the one run of a piece of work, and read which metrics it has already."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mlops.tracking.connection import NOT_ACTIVE, TrackingError, was_outrun
from mlops.tracking.election import find_or_create
from mlops.tracking.rest import RefusedError, Rest

OPEN_ATTEMPTS: Final = 8
COLLISIONS: Final = ("Params were already logged", NOT_ACTIVE)
"""MLflow's errors in all but one of the processes that open a run at once, unless they were outrun."""
MAX_PER_REQUEST: Final = 100
"""Most params or tags of a request; MLflow's own limit."""
SYSTEM_PREFIX: Final = "system/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """Everything that a run is opened with."""

    experiment: str
    run_key: str
    """Key that identifies the work: a retry goes on in the same run."""
    name: str
    params: Mapping[str, str]
    """
    Params of the run. MLflow keeps the first value of a param. A later attempt's other value (a world size, say)
    becomes the tag ``mlops.latest.<param>``.
    """
    tags: Mapping[str, str]
    leads: bool
    """True if this process sets the run's status and ends it. One process does; the others only add metrics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRun:
    """A run on the server, and the steps that each metric had when it was opened."""

    rest: Rest
    run_id: str
    started: int
    """Start of the run, Unix time in milliseconds."""
    latest: Mapping[str, int]
    """Highest step of each metric."""
    _steps: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def floor(self) -> int:
        """Highest training step of any metric when the run was opened; -1 if there is none."""
        return max((step for key, step in self.latest.items() if not key.startswith(SYSTEM_PREFIX)), default=-1)

    def holds(self, key: str, step: int) -> bool:
        """
        Return True if the metric has a value at this step.

        MLflow can neither delete nor replace a value. Values that an attempt repeats after a resume are therefore left
        out: one value per step, the first. An attempt that could not send everything leaves gaps, so that the highest
        step alone does not decide it.
        """
        if step > self.latest.get(key, -1):
            return False
        if key not in self._steps:
            history = self.rest.pages("metrics/get-history", "metrics", run_id=self.run_id, metric_key=key)
            steps = np.fromiter((int(metric.get("step", 0)) for metric in history), np.int64)
            self._steps[key] = np.unique(steps)
        steps = self._steps[key]
        place = int(np.searchsorted(steps, step))
        return place < len(steps) and int(steps[place]) == step

    def step_of(self, unix_milliseconds: int) -> int:
        """
        Return the run's age in seconds at that time: the step of metrics of no training step. Grows over all attempts.
        """
        return max(0, unix_milliseconds - self.started) // 1000

    def log(self, metrics: bytes) -> None:
        """
        Log metrics.

        :param metrics: at most 1,000 as JSON objects, separated by commas
        """
        self.rest.post("runs/log-batch", b'{"run_id": "%s", "metrics": [%s]}' % (self.run_id.encode(), metrics))

    def set_tag(self, key: str, value: str) -> None:
        self.rest.post("runs/set-tag", {"run_id": self.run_id, "key": key, "value": value})

    def end(self, status: str) -> None:
        """
        End the run.

        :param status: ``FINISHED`` or ``FAILED``
        """
        ended = {"run_id": self.run_id, "status": status, "end_time": int(time.time() * 1000)}
        self.rest.post("runs/update", ended)


def open_on_server(rest: Rest, opening: Opening) -> OpenRun:
    """
    Find the run by its key, or create it.

    :raises TrackingError: if the server is away or refuses
    """
    experiment_id = _experiment(rest, opening.experiment)
    for attempts_left in reversed(range(OPEN_ATTEMPTS)):
        try:
            run_id = find_or_create(rest, experiment_id, run_key=opening.run_key, name=opening.name)
            if run_id is None:
                continue
            if opening.leads:
                rest.post("runs/update", {"run_id": run_id, "status": "RUNNING"})
                _describe(rest, run_id, opening)
            return read_run(rest, run_id)
        except RefusedError as error:
            collided = was_outrun(error) or any(sign in str(error) for sign in COLLISIONS)
            if not attempts_left or not collided:
                raise
    raise TrackingError(f"other processes open the run of {opening.run_key!r} at the same time: try again")


def read_run(rest: Rest, run_id: str) -> OpenRun:
    run = rest.get("runs/get", run_id=run_id)["run"]
    latest = {metric["key"]: int(metric.get("step", 0)) for metric in run["data"].get("metrics", [])}
    return OpenRun(rest=rest, run_id=run_id, started=int(run["info"].get("start_time", 0)), latest=latest)


def _describe(rest: Rest, run_id: str, opening: Opening) -> None:
    stored = rest.get("runs/get", run_id=run_id)["run"]["data"].get("params", [])
    there = {param["key"]: param.get("value", "") for param in stored}
    new = {key: value for key, value in opening.params.items() if key not in there}
    changed = {f"mlops.latest.{key}": value for key, value in opening.params.items() if there.get(key, value) != value}
    for params in _chunks(_pairs(new)):
        rest.post("runs/log-batch", {"run_id": run_id, "params": params})
    for tags in _chunks(_pairs({**opening.tags, **changed})):
        rest.post("runs/log-batch", {"run_id": run_id, "tags": tags})


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _chunks(entries: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (entries[start : start + MAX_PER_REQUEST] for start in range(0, len(entries), MAX_PER_REQUEST))


def _experiment(rest: Rest, name: str) -> str:
    for attempts_left in (1, 0):
        try:
            found: str = rest.get("experiments/get-by-name", experiment_name=name)["experiment"]["experiment_id"]
            return found
        except RefusedError as error:
            if not attempts_left or error.code != "RESOURCE_DOES_NOT_EXIST":
                raise
        try:
            rest.post("experiments/create", {"name": name})
        except RefusedError as error:
            if error.code != "RESOURCE_ALREADY_EXISTS":
                raise
    raise AssertionError("the last attempt returns or raises")
