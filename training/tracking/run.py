"""The MLflow run of a training: one, however often its step is tried."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from training.tracking.connection import TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

RUN_KEY_TAG: Final = "mlops.run_key"
OPEN_ATTEMPTS: Final = 8
COLLISIONS: Final = ("IntegrityError", "must be in the 'active' state")
MAX_PARAM_LENGTH: Final = 6000  # MLflow's own limit

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """The metrics of one moment. Sent twice they are stored once, for MLflow's key holds every field."""

    step: int
    unix_time: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    """A run in MLflow; metrics are sent from a thread, so that training never waits for the server."""

    client: MlflowClient
    run_id: str
    _points: list[Point] = field(default_factory=list)
    _sent: list[Future[None]] = field(default_factory=list)
    _sender: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "tracking"))

    def log(self, point: Point) -> None:
        """Queue metrics. A server that is away during training does not stop it: :meth:`flush` sends them again."""
        self._points.append(point)
        self._sent.append(self._sender.submit(self._send, point))

    def flush(self) -> None:
        """
        Wait until all metrics are stored; what failed before is sent once more.

        :raises TrackingError: where the server still does not take them
        """
        for point, future in zip(self._points, self._sent, strict=True):
            if (error := future.exception()) is not None:
                logger.warning("MLflow did not take the metrics of step %d (%s); sending them again", point.step, error)
                with translated(f"cannot store the metrics of run {self.run_id}"):
                    self._send(point)
        self._points.clear()
        self._sent.clear()

    def log_bytes(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Store files beside the run."""
        with tempfile.TemporaryDirectory() as scratch, translated(f"cannot store files of run {self.run_id}"):
            for name, data in files.items():
                Path(scratch, name).write_bytes(data)
            self.client.log_artifacts(self.run_id, scratch, folder or None)

    def log_values(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Final values, without step."""
        from mlflow.entities import Metric, RunTag

        with translated(f"cannot store values of run {self.run_id}"):
            self.client.log_batch(
                self.run_id,
                metrics=[Metric(name, value, 0, 0) for name, value in metrics.items()],
                tags=[RunTag(name, value) for name, value in tags.items()],
            )

    def finish(self) -> None:
        self.flush()
        with translated(f"cannot finish run {self.run_id}"):
            self.client.set_terminated(self.run_id, "FINISHED")

    def abandon(self) -> None:
        """Mark the run as failed; the reason is the caller's to raise, so a server that is away is only logged."""
        try:
            with translated(f"cannot mark run {self.run_id} as failed"):
                self.client.set_terminated(self.run_id, "FAILED")
        except TrackingError as error:
            logger.warning("%s", error)

    @property
    def artifact_uri(self) -> str:
        with translated(f"cannot read run {self.run_id}"):
            uri: str = self.client.get_run(self.run_id).info.artifact_uri
        return uri

    def tag(self, name: str) -> str | None:
        with translated(f"cannot read run {self.run_id}"):
            tags: dict[str, str] = self.client.get_run(self.run_id).data.tags
        return tags.get(name)

    def _send(self, point: Point) -> None:
        from mlflow.entities import Metric

        milliseconds = int(point.unix_time * 1000)
        metrics = [Metric(name, value, milliseconds, point.step) for name, value in point.metrics.items()]
        self.client.log_batch(self.run_id, metrics=metrics)


def open_run(
    client: MlflowClient,
    *,
    experiment: str,
    run_key: str,
    name: str,
    params: Mapping[str, Any],
    tags: Mapping[str, str],
) -> TrackedRun:
    """
    Find the run of this work by its key, or create it: a retry goes on in the same run.

    :raises TrackingError: where the server refuses
    """
    from mlflow.entities import Param, RunTag
    from mlflow.exceptions import MlflowException

    settings = [Param(key, str(value)[:MAX_PARAM_LENGTH]) for key, value in params.items()]
    marks = [RunTag(key, value) for key, value in tags.items()]
    with translated(f"cannot open a run of experiment {experiment!r}"):
        experiment_id = _experiment(client, experiment)
        for attempts_left in reversed(range(OPEN_ATTEMPTS)):
            try:
                run_id = _find_or_create(client, experiment_id, run_key, name)
                client.update_run(run_id, status="RUNNING")
                client.log_batch(run_id, params=settings, tags=marks)
                return TrackedRun(client=client, run_id=run_id)
            except MlflowException as error:
                # Of processes that open it at once, all but one may find their run deleted, or collide on a parameter.
                if not attempts_left or not any(sign in str(error) for sign in COLLISIONS):
                    raise
    raise AssertionError("the last attempt returns or raises")


def _find_or_create(client: MlflowClient, experiment_id: str, run_key: str, name: str) -> str:
    runs = _runs_of(client, experiment_id, run_key)
    if not runs:
        client.create_run(experiment_id, tags={RUN_KEY_TAG: run_key}, run_name=name)
        # Others may have created one each at the same time: the oldest stays.
        runs = _runs_of(client, experiment_id, run_key)
        for surplus in runs[1:]:
            client.delete_run(surplus.info.run_id)
    run_id: str = runs[0].info.run_id
    return run_id


def reopen_run(client: MlflowClient, run_id: str) -> TrackedRun:
    """A run that an earlier step made."""
    with translated(f"cannot read run {run_id}"):
        client.get_run(run_id)
    return TrackedRun(client=client, run_id=run_id)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Errors of mlflow, which hold the request and a stack of retries, as one that says what could not be done."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        raise TrackingError(f"MLflow: {what}: {str(error).splitlines()[0]}") from error


def _runs_of(client: MlflowClient, experiment_id: str, run_key: str) -> list[Run]:
    found = client.search_runs([experiment_id], f"tags.`{RUN_KEY_TAG}` = '{run_key}'")
    return sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))


def _experiment(client: MlflowClient, name: str) -> str:
    from mlflow.exceptions import MlflowException

    if (found := client.get_experiment_by_name(name)) is not None:
        return found.experiment_id
    try:
        return client.create_experiment(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        created = client.get_experiment_by_name(name)
        assert created is not None, "it exists already"
        return created.experiment_id
