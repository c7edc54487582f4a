"""Checkpoints of a training: saved in the background, whole or not there, read at any world size and layout."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar, cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from mlops_provider.step import StepError
from training.store import Store
from training.trainer.checkpoint import loading
from training.trainer.checkpoint.committed import Saved, best_of, find_damage, read_listing, step_of
from training.trainer.checkpoint.planning import CheckpointError, Plan, make_plan, structure_of
from training.trainer.checkpoint.staging import Staging
from training.trainer.checkpoint.tree import Flat, encode, flatten
from training.trainer.checkpoint.writing import Save, Writer
from training.trainer.parallel import Gang

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Checkpoints:
    """
    The checkpoints of one training, under ``<place>/checkpoints/step-00000120/`` and so on.

    Each rank's tensors are one file, ``rank-0003.<attempt>-<save>.bin``, a name that no other save uses;
    ``checkpoint.json`` is put last: its presence is the commit. All methods but :meth:`load_whole` are called by all
    ranks, in the same order.

    :param keep_latest: complete checkpoints kept, each with the best one of its time
    :param timeout: until a rank that does not report its part is given up, and the save with it
    :param retry_seconds: before a failed write is tried again, the first time; then twice as long
    """

    def __init__(
        self,
        *,
        store: Store,
        place: str,
        gang: Gang,
        keep_latest: int = 3,
        timeout: timedelta = timedelta(minutes=10),
        retry_seconds: float = 1.0,
    ) -> None:
        self.store, self.place = store, place
        self._gang = gang
        self._writer = Writer(
            store=store,
            place=place,
            rank=gang.rank,
            world_size=gang.world_size,
            keep_latest=keep_latest,
            timeout=timeout,
            retry_seconds=retry_seconds,
        )
        self._plan: Plan | None = None
        self._staging: Staging | None = None
        self._number = 0
        self._last: Future[None] | None = None
        self.last_blocked_seconds = 0.0
        """How long the newest save held up the training."""

    @property
    def last_durable_seconds(self) -> float:
        """How long the newest successful save took until it would survive a power cut."""
        return self._writer.last_durable_seconds

    def prepare(self, tensors: dict[str, Any]) -> None:
        """Plan, and take the memory, before the training starts: the first save then blocks no longer than the next."""
        self._replan(flatten(tensors))

    def save(
        self,
        step: int,
        tensors: dict[str, Any],
        meta: dict[str, Any],
        *,
        best_step: int | None = None,
        wait: bool = False,
    ) -> bool:
        """
        Copy the state; it is written in the background.

        :param tensors: of DCP's ``get_state_dict``: nested dicts of tensors, DTensors and plain values
        :param meta: JSON; rank 0's counts
        :param best_step: of the best so far, this step itself where it is that one; None where there is none yet
        :param wait: for the save that is still being written, if any; a best one always does
        :return: False where that one is being written still and this one is skipped; the same on every rank
        :raises BadConfigError: where the state holds what a checkpoint cannot
        """
        started = time.monotonic()
        flat = flatten(tensors)
        document = json.dumps(meta, allow_nan=False)
        encoded = {key: encode(key, value) for key, value in flat.values.items()}
        structure = structure_of(flat)
        busy, changed = self._gang.any(
            self._last is not None and not self._last.done(), self._plan is None or self._plan.structure != structure
        )
        if busy:
            if not (wait or best_step == step):
                self._log(logging.WARNING, f"checkpoint of step {step} skipped: the one before is still being written")
                return False
            self._settle()
        if changed:
            self._replan(flat)
        assert self._plan is not None, "planned above"
        assert self._staging is not None, "planned above"
        self._staging.fill(self._sources(flat))
        self.last_blocked_seconds = time.monotonic() - started
        job = Save(
            number=self._number,
            step=step,
            meta=document,
            best_step=best_step,
            values={key: encoded[key] for key in self._plan.mine.values},
            plan=self._plan,
            staging=self._staging,
            started=started,
            blocked_seconds=self.last_blocked_seconds,
            saved_at=time.time(),
        )
        self._number += 1
        self._last = self._writer.start(job)
        return True

    def wait(self) -> None:
        """
        Until nothing is in flight.

        :raises CheckpointError: where the last save could not be written
        """
        if self._last is not None:
            self._settle()
            if error := self._last.exception():
                raise CheckpointError(f"the last checkpoint could not be written: {error}") from error

    def newest(self) -> Saved | None:
        """
        The newest complete checkpoint whose checksums hold, if any. Says which it passes over, and why.

        So must those of the best one of its time, whose weights a training that goes on may well end with: where it
        is damaged, or was never written, the training goes back to before it, and makes it again.
        """
        listing = self._lead(lambda: read_listing(self.store, self.place))
        for reason in listing.damaged.values():
            self._log(logging.WARNING, f"{reason}; going back to the checkpoint before")
        complete = {saved.step: saved for saved in listing.complete}

        @cache
        def whole(step: int) -> bool:
            return step in complete and self._whole(complete[step])

        chosen = next((saved for saved in reversed(listing.complete) if self._usable(saved, whole)), None)
        # A training that goes on from an earlier one would otherwise meet them again.
        reached = chosen.step if chosen else -1
        self._writer.passed_over = [folder for folder in listing.folders if step_of(folder) > reached]
        return chosen

    def _usable(self, saved: Saved, whole: Callable[[int], bool]) -> bool:
        best_step = saved.best_step
        if best_step is not None and best_step != saved.step and not whole(best_step):
            reason = f"that of step {best_step}, the best of its time, is damaged or not there"
            self._log(logging.WARNING, f"passing over the checkpoint of step {saved.step}: {reason}")
            return False
        return whole(saved.step)

    def best(self) -> Saved | None:
        """The best one, as the newest has it, if it is there and its checksums hold."""
        saved = self._lead(self._find_best)
        return saved if saved is not None and self._whole(saved) else None

    def _find_best(self) -> Saved | None:
        complete = read_listing(self.store, self.place).complete
        # Where the store failed, what was passed over is there still.
        return best_of([saved for saved in complete if saved.folder not in self._writer.passed_over])

    def load(self, saved: Saved, tensors: dict[str, Any]) -> None:
        """Fill a state in place; its world size and layout may be others than the checkpoint's."""
        loading.load_into(self.store, saved, tensors)

    def load_whole(self, saved: Saved, part: str | None = None) -> dict[str, Any]:
        """One rank alone: full tensors on the CPU; of one part of the state, e.g. ``model``, where that is named."""
        return loading.load_whole(self.store, saved, part)

    def _replan(self, flat: Flat) -> None:
        attempt = self._plan.attempt if self._plan else uuid.uuid4().hex[:8]
        self._staging = None  # first: memory for two is not to be had
        self._plan = make_plan(flat, attempt=attempt, gang=self._gang)
        pinned = any(tensor.is_cuda for tensor in flat.tensors.values())
        self._staging = Staging(self._plan.mine, pinned=pinned)

    def _sources(self, flat: Flat) -> Sequence[torch.Tensor]:
        assert self._plan is not None
        planner = DefaultSavePlanner(flatten_state_dict=False)
        planner.set_up_planner(flat.tensors)
        return [cast(torch.Tensor, planner.resolve_data(placed.item)) for placed in self._plan.mine.placed]

    def _settle(self) -> None:
        assert self._last is not None
        self._last.exception()  # returns it: the write has said what went wrong

    def _lead(self, look: Callable[[], T]) -> T:
        """What rank 0 sees, so that all agree, whatever others write meanwhile; its error too."""
        result, error = self._gang.from_leader(_outcome(look) if self._gang.leads else (None, None))
        if error is not None:
            raise error
        return cast(T, result)

    def _whole(self, saved: Saved) -> bool:
        """Each rank reads its share of the files."""
        gang = self._gang
        mine = _outcome(lambda: find_damage(self.store, saved, slice(gang.rank, None, gang.world_size)))
        outcomes = gang.from_leader(gang.gather_objects(mine)) or []
        for _, error in outcomes:
            if error is not None:
                raise error
        damage = sorted({problem for problems, _ in outcomes for problem in problems or ()})
        for problem in damage:
            self._log(logging.WARNING, f"{problem}; passing over the checkpoint of step {saved.step}")
        return not damage

    def _log(self, level: int, message: str) -> None:
        if self._gang.leads:
            logger.log(level, "%s", message)


def _outcome(look: Callable[[], T]) -> tuple[T | None, StepError | None]:
    """A result or an error, to be told to other ranks: one that raised alone would leave them waiting."""
    try:
        return look(), None
    except StepError as error:
        return None, error
