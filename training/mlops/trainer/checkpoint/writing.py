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

from mlops.contract.checkpoint_listing import copy_folder_of, folder_of, generation_of
from mlops.contract.checkpoint_markers import RETIRED, RankFile, Saved
from mlops.contract.step import StepError
from mlops.store import Store
from mlops.store_errors import StoreError
from mlops.trainer.checkpoint.files import CheckpointFiles
from mlops.trainer.checkpoint.generation import Generation, GenerationGoneError, LostGenerationError
from mlops.trainer.checkpoint.listing import read_listing, superseded
from mlops.trainer.checkpoint.planning import CheckpointError, Plan
from mlops.trainer.checkpoint.reports import Reports
from mlops.trainer.checkpoint.staging import SMALL_BYTES, Staging

TRIES: Final = 3

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Save:
    """All that the background needs to know of one save."""

    number: int
    """Counts the saves of this gang: the same on every rank."""
    generation: int
    attempt: str
    """Names the gang: files of two never have one name."""
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

    @property
    def is_best(self) -> bool:
        return self.best_step == self.step


class Writer:
    """
    Writes one save after another, each in a thread. See :class:`~mlops.trainer.checkpoint.checkpoints.Checkpoints`
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
        self.generation: Generation | None = None
        """On rank 0, once it is taken."""
        self.distrusted: set[str] = set()
        """Folders whose bytes were read and are damaged: removed after the next commit."""
        self.ended: LostGenerationError | GenerationGoneError | None = None
        """Why this process group must end."""
        self.last_durable_seconds = 0.0

    def start(self, job: Save) -> Future[None]:
        """Returns at once. The future holds the error, if any."""
        if self._reports is None and self._world_size > 1:
            self._reports = Reports(
                attempt=job.attempt, rank=self._rank, world_size=self._world_size, timeout=self._timeout
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
            if isinstance(error, LostGenerationError | GenerationGoneError):
                self.ended = error
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
            self._finish(job, report)
        except distributed.DistError as error:
            raise CheckpointError(str(error)) from error

    def _write_file(self, job: Save) -> list[int]:
        if not job.plan.mine.file_bytes:
            return []
        job.staging.wait()
        if job.plan.mine.file_bytes < SMALL_BYTES:
            self._write_copies(job)
            return job.staging.checksums()
        with ThreadPoolExecutor(1, thread_name_prefix="checkpoint-sums") as beside:
            checksums = beside.submit(job.staging.checksums)
            self._write_copies(job)
            return checksums.result()

    def _write_copies(self, job: Save) -> None:
        """The checkpoint's file, and for the best one that of its weights."""
        self._files.write(self._file_key(job, self._rank), job.staging.memory)
        if job.is_best and (weight_bytes := job.plan.mine.weight_bytes):
            self._files.write(self._file_key(job, self._rank, weights=True), job.staging.memory[:weight_bytes])

    def _finish(self, job: Save, mine: dict[str, Any]) -> None:
        """:raises StepError: why the checkpoint could not be committed, or this process group must end"""
        if self._reports is None:
            self._commit(job, [mine])
            return
        self._reports.post(job.number, mine)
        if self._rank != 0:
            self._reports.conclusion(job.number)
            return
        outcome: StepError | None = CheckpointError("rank 0 failed")
        try:
            self._commit(job, self._reports.collect(job.number))
            outcome = None
        except StepError as error:
            outcome = error
            raise
        finally:
            self._reports.conclude(job.number, outcome)

    def _commit(self, job: Save, reports: Sequence[dict[str, Any]]) -> None:
        if failed := [report["error"] for report in reports if report["error"]]:
            raise CheckpointError("; ".join(failed[:3]))
        try:
            saved = self._retried(lambda: self._put_markers(job, reports))
        except StoreError as error:
            raise CheckpointError(str(error)) from error
        logger.info(
            "checkpoint of step %d saved: %.1f MB in %.1f s, %.3f s of them blocking%s",
            *(job.step, saved.num_bytes / 1e6, time.monotonic() - job.started, job.blocked_seconds),
            " (best)" if job.is_best else "",
        )
        try:
            self._retire(saved)
        except StoreError as error:
            logger.warning("older checkpoints stay for now: %s", error)

    def _put_markers(self, job: Save, reports: Sequence[dict[str, Any]]) -> Saved:
        assert self.generation is not None, "taken before the first save"
        if job.is_best and job.plan.writers(weights=True):
            # The copy first: with the checkpoint, there are two.
            copy = self._document(job, reports, weights=True)
            self.generation.check()
            self._store.put(copy.marker, copy.dump())
        saved = self._document(job, reports)
        self.generation.check()
        # The marker last: its presence is the commit.
        self._store.put(saved.marker, saved.dump())
        return saved

    def _document(self, job: Save, reports: Sequence[dict[str, Any]], *, weights: bool = False) -> Saved:
        """:param weights: the copy of the weights"""
        values = {key: value for report in reports for key, value in report["values"].items()}
        index = job.plan.index([report["checksums"] for report in reports], values, weights=weights)
        folder = self._folder(job, weights=weights)
        return Saved(
            step=job.step,
            generation=job.generation,
            meta={} if weights else json.loads(job.meta),
            best_step=job.best_step,
            folder=folder,
            world_size=self._world_size,
            num_bytes=job.plan.num_bytes(weights=weights),
            saved_at=job.saved_at,
            index=self._store.put_artifact(folder, "index.sections", index),
            files=tuple(
                RankFile(self._file_key(job, rank, weights=weights), num_bytes)
                for rank, num_bytes in job.plan.writers(weights=weights)
            ),
        )

    def _retire(self, saved: Saved) -> None:
        """
        Remove what is superseded: announce, look whether this process group still has the place, then act.

        One that takes over sees the announcement, or is seen here: it never relies on what disappears afterwards.
        """
        generation = self.generation
        assert generation is not None, "taken before the first save"
        self.distrusted.discard(saved.folder)
        listing = read_listing(self._store, self._place)
        ours = {folder for folder in listing.folders if generation_of(folder) == generation.number}
        gone = superseded(
            listing,
            saved=saved,
            keep_latest=self._keep_latest,
            ours=ours | generation.inherited,
            distrusted=self.distrusted,
        )
        if not gone:
            return
        for folder in {one.folder for one in listing.complete} & set(gone):
            # For those that live beside this one; a power cut ends both.
            self._store.put(f"{folder}/{RETIRED}", b"{}", durable=False)
        generation.check()
        for folder in gone:
            self._files.remove(folder)

    def _folder(self, job: Save, *, weights: bool = False) -> str:
        return (copy_folder_of if weights else folder_of)(self._place, job.step, job.generation)

    def _file_key(self, job: Save, rank: int, *, weights: bool = False) -> str:
        return f"{self._folder(job, weights=weights)}/rank-{rank:04d}.{job.attempt}-{job.number}.bin"

    def _retried(self, work: Callable[[], T]) -> T:
        for attempt in range(1, TRIES):
            try:
                return work()
            except StoreError as error:
                seconds = self._retry_seconds * 2 ** (attempt - 1)
                logger.warning("rank %d: %s; trying again in %.1f s", self._rank, error, seconds)
                time.sleep(seconds)
        return work()
