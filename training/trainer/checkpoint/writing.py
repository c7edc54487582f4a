"""Writing a checkpoint, in the background: every rank its file, rank 0 the marker."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from torch import distributed

from training.store import Store, StoreError
from training.trainer.checkpoint.committed import Saved, folder_of, read_listing, superseded
from training.trainer.checkpoint.files import CheckpointFiles, RankFile
from training.trainer.checkpoint.planning import CheckpointError, Plan
from training.trainer.checkpoint.reports import Reports
from training.trainer.checkpoint.staging import Staging

TRIES: Final = 3

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Save:
    """All that the background needs to know of one save."""

    number: int
    """Counts the saves of this gang: the same on every rank."""
    step: int
    meta: str
    best_step: int | None
    values: dict[str, Any]
    plan: Plan
    staging: Staging
    started: float
    """Monotonic."""
    blocked_seconds: float
    saved_at: float


class Writer:
    """
    Writes one save after another, each in a thread. See :class:`~training.trainer.checkpoint.checkpoints.Checkpoints`
    for the parameters.
    """

    def __init__(
        self,
        *,
        store: Store,
        place: str,
        rank: int,
        world_size: int,
        keep_latest: int,
        timeout: timedelta,
        retry_seconds: float,
    ) -> None:
        self._store, self._place = store, place
        self._rank, self._world_size = rank, world_size
        self._keep_latest, self._timeout, self._retry_seconds = keep_latest, timeout, retry_seconds
        self._files = CheckpointFiles(store)
        self._reports: Reports | None = None
        self.passed_over: list[str] = []
        """Folders to remove after the next commit."""
        self.last_durable_seconds = 0.0

    def start(self, job: Save) -> Future[None]:
        """Returns at once. The future holds the error, if any."""
        if self._reports is None and self._world_size > 1:
            self._reports = Reports(
                attempt=job.plan.attempt, rank=self._rank, world_size=self._world_size, timeout=self._timeout
            )
        done = Future[None]()
        # A daemon: a process that fails does not wait for ranks that are gone.
        threading.Thread(target=self._run, args=(job, done), name="checkpoint-write", daemon=True).start()
        return done

    def _run(self, job: Save, done: Future[None]) -> None:
        try:
            self._write(job)
        except BaseException as error:
            # Not lost: whoever waits is told, as by concurrent.futures.
            logger.warning("checkpoint of step %d could not be written, rank %d: %s", job.step, self._rank, error)
            done.set_exception(error)
        else:
            self.last_durable_seconds = time.monotonic() - job.started
            done.set_result(None)

    def _write(self, job: Save) -> None:
        report: dict[str, Any] = {"values": job.values, "error": ""}
        try:
            report["checksums"] = self._retried(lambda: self._write_file(job))
        except StoreError as error:
            report["error"] = f"rank {self._rank}: {error}"
        try:
            error_text = self._finish(job, report)
        except (CheckpointError, distributed.DistError) as error:
            error_text = str(error)
        if error_text:
            raise CheckpointError(error_text)

    def _write_file(self, job: Save) -> list[int]:
        if not job.plan.mine.file_bytes:
            return []
        with ThreadPoolExecutor(1, thread_name_prefix="checkpoint-sums") as beside:
            checksums = beside.submit(job.staging.checksums)
            self._files.write(self._file_key(job, self._rank), job.staging.memory)
            return checksums.result()

    def _finish(self, job: Save, mine: dict[str, Any]) -> str:
        """:return: why the checkpoint could not be committed; empty where it is"""
        if self._reports is None:
            return self._commit(job, [mine])
        self._reports.post(job.number, mine)
        if self._rank != 0:
            return self._reports.conclusion(job.number)
        error_text = "rank 0 failed"
        try:
            error_text = self._commit(job, self._reports.collect(job.number))
        except CheckpointError as error:
            error_text = str(error)
        finally:
            self._reports.conclude(job.number, error_text)
        return error_text

    def _commit(self, job: Save, reports: Sequence[dict[str, Any]]) -> str:
        if failed := [report["error"] for report in reports if report["error"]]:
            return "; ".join(failed[:3])
        try:
            saved = self._retried(lambda: self._put_marker(job, reports))
        except StoreError as error:
            return str(error)
        logger.info(
            "checkpoint of step %d saved: %.1f MB in %.1f s, %.3f s of them blocking%s",
            *(job.step, saved.num_bytes / 1e6, time.monotonic() - job.started, job.blocked_seconds),
            " (best)" if saved.best_step == saved.step else "",
        )
        try:
            self._retire(saved)
        except StoreError as error:
            logger.warning("older checkpoints stay for now: %s", error)
        return ""

    def _put_marker(self, job: Save, reports: Sequence[dict[str, Any]]) -> Saved:
        values = {key: value for report in reports for key, value in report["values"].items()}
        index = job.plan.index([report["checksums"] for report in reports], values)
        folder = folder_of(self._place, job.step)
        saved = Saved(
            step=job.step,
            meta=json.loads(job.meta),
            best_step=job.best_step,
            folder=folder,
            attempt=job.plan.attempt,
            world_size=self._world_size,
            num_bytes=job.plan.num_bytes,
            saved_at=job.saved_at,
            index=self._store.put_artifact(folder, "index.json.z", index.dump()),
            files=tuple(
                RankFile(self._file_key(job, rank), plan.file_bytes)
                for rank, plan in enumerate(job.plan.ranks)
                if plan.file_bytes
            ),
        )
        # The marker last: its presence is the commit.
        self._store.put(saved.marker, saved.dump())
        return saved

    def _retire(self, saved: Saved) -> None:
        # First those passed over: they would count among the latest, in the place of what the training went on from.
        self.passed_over = [folder for folder in self.passed_over if folder != saved.folder]
        for folder in self.passed_over:
            self._files.remove(folder)
        self.passed_over = []
        listing = read_listing(self._store, self._place)
        for folder in superseded(listing, newest=saved.step, keep_latest=self._keep_latest):
            self._files.remove(folder)

    def _file_key(self, job: Save, rank: int) -> str:
        return f"{folder_of(self._place, job.step)}/rank-{rank:04d}.{job.plan.attempt}-{job.number}.bin"

    def _retried(self, work: Callable[[], T]) -> T:
        for attempt in range(1, TRIES):
            try:
                return work()
            except StoreError as error:
                seconds = self._retry_seconds * 2 ** (attempt - 1)
                logger.warning("rank %d: %s; trying again in %.1f s", self._rank, error, seconds)
                time.sleep(seconds)
        return work()
