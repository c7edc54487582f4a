"""The MLflow run of a training: one, however often its step is tried."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from mlops.contract.step import StepError, scratch_parent
from mlops.tracking.connection import (
    DeniedError,
    LoginError,
    TrackingAwayError,
    TrackingError,
    check_address,
    classify_client_error,
    connect,
    login_refused,
    tracking_error,
)
from mlops.tracking.journal import Journal, Point
from mlops.tracking.opening import Opening
from mlops.tracking.sender import Sender

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["Point", "StoredRun", "TrackedRun", "open_run", "reopen_run", "translated"]

PARENT_TAG: Final = "mlflow.parentRunId"  # MLflow's own: its pages show runs below their parent
MAX_PARAM_LENGTH: Final = 6000  # MLflow's own limit
FINISH_SECONDS: Final = 300.0
ABANDON_SECONDS: Final = 5.0
_NO_LOGIN: Final = ("UNAUTHENTICATED", "PERMISSION_DENIED")
"""Error codes that mlflow's client makes of 401 and 403."""

EVALUATION_FOLDER: Final = "evaluation"
MODEL_PACKAGE: Final = "model_package"
"""
Artifact of a :class:`~mlops.contract.refs.ReportRef` that passed: what its model is registered as, without the weights.
"""
EVALUATION: Final = {
    "report": f"{EVALUATION_FOLDER}/report.html",
    "metrics": f"{EVALUATION_FOLDER}/metrics.json",
    MODEL_PACKAGE: f"{EVALUATION_FOLDER}/{MODEL_PACKAGE}.zip",
}
"""
Artifacts of a :class:`~mlops.contract.refs.ReportRef`, and the paths at which the training's run has a copy of each.
"""

logger = logging.getLogger(__name__)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=scratch_parent())


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRun:
    """A run that MLflow has, for writes that are done at once. A server that is away is an error here."""

    client: MlflowClient
    run_id: str

    def log_bytes(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Store files beside the run."""
        with _scratch() as scratch, translated(f"cannot store files of run {self.run_id}"):
            for name, data in files.items():
                Path(scratch, name).write_bytes(data)
            self.client.log_artifacts(self.run_id, scratch, folder or None)

    def read(self, path: str) -> bytes | None:
        """Return a file that is stored beside the run; None if there is none."""
        with _scratch() as scratch, translated(f"cannot read {path} of run {self.run_id}"):
            if path not in [
                file.path for file in self.client.list_artifacts(self.run_id, str(PurePosixPath(path).parent))
            ]:
                return None
            return Path(self.client.download_artifacts(self.run_id, path, scratch)).read_bytes()

    def log_values(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Log final values, without step."""
        from mlflow.entities import Metric, RunTag

        now = int(time.time() * 1000)
        with translated(f"cannot store values of run {self.run_id}"):
            self.client.log_batch(
                self.run_id,
                # MLflow shows the largest of equal instants, not the last.
                metrics=[Metric(name, value, now, 0) for name, value in metrics.items()],
                tags=[RunTag(name, value) for name, value in tags.items()],
            )

    def adopt(self, tag: str, value: str, statuses: Mapping[str, str], number: str) -> None:
        """
        Make the runs with a tag this one's children, and end those that no process will end any more.

        :param statuses: final status of each run, by its tag named ``number``
        """
        with translated(f"cannot settle the children of run {self.run_id}"):
            experiment = self.client.get_run(self.run_id).info.experiment_id
            for run in self.client.search_runs([experiment], f"tags.`{tag}` = '{value}'", max_results=5000):
                if run.data.tags.get(PARENT_TAG) != self.run_id:
                    self.client.set_tag(run.info.run_id, PARENT_TAG, self.run_id)
                status = statuses.get(run.data.tags[number])
                if status is not None and run.info.status == "RUNNING":
                    self.client.set_terminated(run.info.run_id, status)

    def tag(self, name: str) -> str | None:
        with translated(f"cannot read run {self.run_id}"):
            tags: dict[str, str] = self.client.get_run(self.run_id).data.tags
        return tags.get(name)


class TrackedRun:
    """
    A run in progress. :meth:`log` only records; threads write to disk and send, so that training never waits for MLflow
    and goes on without it.

    Calls, in order: ``log`` any number of times and from any thread; ``flush`` where the process may soon be killed;
    at the end ``finish``, or ``abandon`` where the training failed.
    """

    def __init__(self, tracking_uri: str, opening: Opening, folder: Path) -> None:
        self._tracking_uri = tracking_uri
        self._folder = folder
        try:
            self._journal = Journal(folder)
        except OSError as error:
            raise StepError(f"cannot keep metrics in {folder}: {error}; make it writable, or free its disk") from error
        self.log: Callable[[Point], None] = self._journal.log
        """
        Record the metrics of a moment, in a microsecond or two: the journal's own method, because a call between costs
        a quarter of that.

        :raises BadConfigError: if MLflow would refuse a metric's name, or a value is not a number
        """
        self._sender = Sender(tracking_uri, opening, self._journal)
        self._sender.start()

    @property
    def run_id(self) -> str:
        """
        Id of the run; waits until the run is open.

        :raises TrackingError: if MLflow stays away
        """
        return self.wait_until_open(FINISH_SECONDS)

    def wait_until_open(self, timeout: float) -> str:
        """
        Wait until the run is open, and return its id.

        :raises TrackingError: if MLflow stays away for so many seconds
        """
        self._wait(lambda: self._sender.run_id is not None, timeout, "did not open a run")
        assert self._sender.run_id is not None, "waited for"
        return self._sender.run_id

    def check_login(self) -> None:
        """
        Check that MLflow has not refused this process.

        :raises LoginError: if MLflow has refused to open the run: nothing that follows would be kept there
        """
        if self._sender.run_id is None and isinstance(self._sender.error, LoginError):
            raise self._sender.error

    @property
    def stored(self) -> StoredRun:
        """Return the same run, for files and tags. Imports mlflow: seconds."""
        return StoredRun(run_id=self.run_id, client=connect(self._tracking_uri))

    def log_bytes(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Store files beside the run, now."""
        self.stored.log_bytes(folder, files)

    def flush(self, timeout: float = FINISH_SECONDS) -> None:
        """
        Put all metrics on disk, then wait until MLflow has them.

        :raises TrackingError: if that takes longer; they stay on disk, for the next attempt on this machine
        """
        self._journal.write()
        self._wait(self._journal.is_empty, timeout, "did not take all metrics")

    def finish(
        self, timeout: float = FINISH_SECONDS, status: str = "FINISHED", tags: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """
        Flush, tag the run, and mark it as finished.

        :param status: ``FINISHED`` or ``KILLED``
        :raises TrackingError: if MLflow stays away for so long; the next attempt sends the metrics that are on disk
        """
        self._sender.tags.update(tags)
        self._end(status, timeout)

    def abandon(self, timeout: float = ABANDON_SECONDS) -> None:
        """Mark the run as failed; the reason is the caller's to raise, so a server that is away is only logged."""
        try:
            self._end("FAILED", timeout)
        except TrackingError as error:
            logger.warning("%s", error)

    def close(self) -> None:
        """End the threads; unsent metrics stay on disk. Called by ``finish`` and ``abandon``."""
        self._sender.stop()
        self._journal.close()
        with suppress(OSError):  # not empty: something waits there, or another process lives
            self._folder.rmdir()

    def _end(self, status: str, timeout: float) -> None:
        self._journal.write()
        self._sender.end(status)
        try:
            self._wait(lambda: self._sender.ended, timeout, f"did not take all metrics and the status {status}")
        finally:
            self.close()

    def _wait(self, done: Callable[[], bool], timeout: float, failure: str) -> None:
        sender, before = self._sender, self._sender.failures

        def refused() -> LoginError | None:
            return sender.error if sender.failures > before and isinstance(sender.error, LoginError) else None

        sender.hurry()
        with sender.changed:
            sender.changed.wait_for(lambda: done() or sender.broken or refused(), timeout)
        if not done():
            if (error := refused()) is not None:
                raise error
            reason = f": {sender.error}" if sender.error else ""
            raise self._kind_of_failure()(
                f"MLflow at {self._tracking_uri} {failure} within {timeout:.0f} s; metrics wait in {self._folder} and "
                f"are sent by the next attempt on this machine{reason}"
            ) from sender.error

    def _kind_of_failure(self) -> type[TrackingError]:
        error = self._sender.error
        if error is None and not self._sender.broken:  # a request is under way, and not answered
            return TrackingAwayError
        return type(error) if isinstance(error, TrackingAwayError | DeniedError) else TrackingError


def open_run(
    server: str | MlflowClient,
    *,
    experiment: str,
    run_key: str,
    name: str,
    params: Mapping[str, Any],
    tags: Mapping[str, str],
    spool: Path | None = None,
    leads: bool = True,
) -> TrackedRun:
    """
    Track a piece of work: in the run that has its key, or a new one. Returns at once; a thread opens the run as soon as
    MLflow answers. To know that it is open before the work begins, call :meth:`TrackedRun.wait_until_open`.

    :param server: MLflow's address, or a client that knows it
    :param spool: local folder for metrics that MLflow does not have yet, the same for each attempt; by default one
        under the machine's folder for temporary files
    :param leads: False in a process that only adds metrics to a run which another one opens and ends
    :raises BadConfigError: if the address is not one of a server
    """
    tracking_uri = server if isinstance(server, str) else str(server.tracking_uri)
    check_address(tracking_uri)
    opening = Opening(
        experiment=experiment,
        run_key=run_key,
        name=name,
        params={key: str(value)[:MAX_PARAM_LENGTH] for key, value in params.items()},
        tags=tags,
        leads=leads,
    )
    place = hashlib.sha256(f"{tracking_uri} {experiment} {run_key}".encode()).hexdigest()[:16]
    spool = spool or Path(tempfile.gettempdir(), f"mlops-metrics-{os.getuid()}")
    return TrackedRun(tracking_uri, opening, spool / place)


def reopen_run(client: MlflowClient, run_id: str) -> StoredRun:
    """Return a run that an earlier step made."""
    with translated(f"cannot read run {run_id}"):
        client.get_run(run_id)
    return StoredRun(client=client, run_id=run_id)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """
    Turn errors of mlflow, which hold the request and a stack of retries, into one that says what could not be done.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        answer = getattr(error, "response", None)  # of a file's transfer
        if getattr(error, "error_code", "") in _NO_LOGIN or getattr(answer, "status_code", 0) in (401, 403):
            address = os.environ.get("MLFLOW_TRACKING_URI", "its address")
            raise login_refused(address, f"{what}: {str(error).splitlines()[0]}") from error
        kind = tracking_error(classify_client_error(error))
        raise kind(f"MLflow: {what}: {str(error).splitlines()[0]}") from error
