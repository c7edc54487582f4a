"""Checkpoints of a training: saved in the background, whole or not there, read at any world size and layout."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from mlops.contract.checkpoint_listing import start_of
from mlops.contract.checkpoint_markers import DamagedCheckpointError, Saved
from mlops.contract.step import StepError
from mlops.store import Store
from mlops.trainer.checkpoint import loading
from mlops.trainer.checkpoint.checkpoint_verification import find_damage
from mlops.trainer.checkpoint.generation import Generation
from mlops.trainer.checkpoint.listing import read_listing
from mlops.trainer.checkpoint.planning import CheckpointError, Plan, make_plan, structure_of
from mlops.trainer.checkpoint.staging import Staging
from mlops.trainer.checkpoint.tree import Contents, Flat, encode, flatten
from mlops.trainer.checkpoint.writing import Save, Writer
from mlops.trainer.parallel import Ranks

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Checkpoints:
    """
    The checkpoints of one training, under ``<place>/checkpoints/step-00000120-g0003/`` and so on.

    Each rank's tensors are one file, ``rank-0003.<attempt>-<save>.bin``, a name that no other save uses;
    ``checkpoint.json`` is put last: its presence is the commit. The best model's weights are written twice, see
    :mod:`mlops.trainer.checkpoint.listing`. All methods but :meth:`load_whole`, :meth:`settle` and
    :meth:`raise_if_ended` are called by all ranks, in the same order. The first of :meth:`newest`, :meth:`prepare` and
    :meth:`save` takes a generation: from then on no earlier process group goes on at this place.

    :param keep_latest: whole checkpoints kept, each with the best one of its time
    :param timeout: until a rank that does not report its part is given up, and the save with it
    :param retry_seconds: before a failed write is tried again, the first time; then twice as long
    """

    def __init__(
        self,
        *,
        store: Store,
        place: str,
        ranks: Ranks,
        keep_latest: int = 3,
        timeout: timedelta = timedelta(minutes=10),
        retry_seconds: float = 1.0,
    ) -> None:
        self.store, self.place = store, place
        self._ranks = ranks
        self._writer = Writer(
            store=store,
            place=place,
            rank=ranks.rank,
            world_size=ranks.world_size,
            keep_latest=keep_latest,
            timeout=timeout,
            retry_seconds=retry_seconds,
        )
        self._plan: Plan | None = None
        self._staging: Staging | None = None
        self._seat: tuple[int, str] | None = None
        """Generation and attempt, once taken."""
        self._start: Saved | None = None
        """Of another training, from which this one goes on."""
        self._announced: frozenset[str] = frozenset()
        """Folders that an earlier process group may remove at any time."""
        self._number = 0
        self._last: Future[None] | None = None
        self.last_blocked_seconds = 0.0
        """How long the newest save held up the training."""

    @property
    def last_durable_seconds(self) -> float:
        """How long the newest successful save took until it would survive a power cut."""
        return self._writer.last_durable_seconds

    @property
    def busy(self) -> bool:
        """Whether this rank's part of a save is still being written."""
        return self._last is not None and not self._last.done()

    def prepare(self, tensors: dict[str, Any]) -> None:
        """Plan, and take the memory, before the training starts: the first save then blocks no longer than the next."""
        self._take()
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
        :raises LostGenerationError: where another process group has taken over
        """
        self.raise_if_ended()
        self._take()
        assert self._seat is not None, "taken above"
        started = time.monotonic()
        flat = flatten(tensors)
        document = json.dumps(meta, allow_nan=False)
        encoded = {key: encode(key, value) for key, value in flat.values.items()}
        structure = structure_of(flat)
        busy, changed = self._ranks.any(self.busy, self._plan is None or self._plan.structure != structure)
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
        # A GPU tells only later how long it copied: about as long as for the save before.
        self.last_blocked_seconds = time.monotonic() - started + self._staging.copy_seconds
        job = Save(
            number=self._number,
            generation=self._seat[0],
            attempt=self._seat[1],
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
        :raises LostGenerationError: where another process group has taken over
        """
        if self._last is not None:
            self._settle()
            self.raise_if_ended()
            if error := self._last.exception():
                raise CheckpointError(f"the last checkpoint could not be written: {error}") from error

    def settle(self, seconds: float) -> None:
        """By any rank alone: until its part of the last save is written, or has failed, but no longer than this."""
        if self._last is not None:
            wait([self._last], timeout=seconds)

    def raise_if_ended(self) -> None:
        """
        By any rank alone, at no cost: this process group must end where a save has found that it lost its place.

        :raises LostGenerationError: where another process group has taken over
        :raises GenerationGoneError: where the place was emptied meanwhile
        """
        if self._writer.ended is not None:
            raise self._writer.ended

    def begin_at(self, find: Callable[[], Saved]) -> None:
        """
        Have a training that has no checkpoint yet go on from a copy of another one's.

        :param find: returns it, asked of rank 0; see :func:`mlops.trainer.checkpoint.resumption.take`
        """
        self._start = self._lead(find)

    def newest(self) -> Saved | None:
        """
        The newest complete checkpoint whose checksums hold, if any, whatever others are like; or else the copy of
        another training's that this one goes on from.

        Says which it passes over, and why.

        :raises LostGenerationError: where another process group has taken over from an earlier one of this agent's
        :raises DamagedCheckpointError: where that copy is damaged
        """
        self._take()
        listing = self._lead(lambda: read_listing(self.store, self.place))
        for reason in listing.damaged.values():
            self._log(logging.WARNING, f"{reason}; going back to the checkpoint before")
        self._announced = frozenset(listing.retired)
        newest = next((saved for saved in reversed(listing.complete) if self._whole(saved)), None)
        if newest is None and (newest := self._start) is not None and not self._whole(newest):
            raise DamagedCheckpointError(
                f"{newest.folder}, from which this training goes on, is damaged: remove that folder, and the next try "
                "takes it from the other training again, where it is whole"
            )
        return newest

    def choose_weights(self, steps: Sequence[int], *, known: Saved | None = None) -> Saved | None:
        """
        The first of some steps whose weights are there and whole, in its checkpoint or in the copy of the best.

        :param steps: optimizer steps, the most wanted one first
        :param known: a checkpoint that was read just now, and is whole
        :return: for :meth:`load_whole`, of the part ``model``
        """
        places = [self.place, *([start_of(self.place)] if self._start else [])]
        listings = self._lead(lambda: [read_listing(self.store, place) for place in places])
        found = (saved for step in steps for listing in listings for saved in listing.weights_of(step))
        return next((saved for saved in found if saved == known or self._whole(saved)), None)

    def contents(self, saved: Saved) -> Contents:
        """What a checkpoint holds, without its tensors' bytes."""
        return loading.contents(self.store, saved)

    def load(self, saved: Saved, tensors: dict[str, Any]) -> None:
        """
        Fill a state in place; its world size and layout may be others than the checkpoint's.

        Where an earlier process group may still remove that checkpoint, it is saved again at once, as this one's own.
        """
        loading.load_into(self.store, saved, tensors)
        if saved.folder in self._announced:
            self.save(saved.step, tensors, dict(saved.meta), best_step=saved.best_step, wait=True)
            self.wait()

    def load_whole(self, saved: Saved, part: str | None = None) -> dict[str, Any]:
        """One rank alone: full tensors on the CPU; of one part of the state, e.g. ``model``, where that is named."""
        return loading.load_whole(self.store, saved, part)

    def _take(self) -> None:
        if self._seat is None:
            self._seat = self._lead(self._take_generation)

    def _take_generation(self) -> tuple[int, str]:
        generation = Generation.take(self.store, self.place)
        self._writer.generation = generation
        return generation.number, generation.writer[:8]

    def _replan(self, flat: Flat) -> None:
        self._staging = None  # first: memory for two is not to be had
        self._plan = make_plan(flat, ranks=self._ranks)
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
        result, error = self._ranks.from_leader(_outcome(look) if self._ranks.leads else (None, None))
        if error is not None:
            raise error
        return cast(T, result)

    def _whole(self, saved: Saved) -> bool:
        """Each rank reads its share of the files."""
        ranks = self._ranks
        mine = _outcome(lambda: find_damage(self.store, saved, slice(ranks.rank, None, ranks.world_size)))
        outcomes = ranks.from_leader(ranks.gather_objects(mine)) or []
        for _, error in outcomes:
            if error is not None:
                raise error
        damage = sorted({problem for problems, _ in outcomes for problem in problems or ()})
        for problem in damage:
            self._log(logging.WARNING, f"{problem}; passing over {saved.folder.rpartition('/')[2]}")
        if damage:
            self._writer.distrusted.add(saved.folder)
        return not damage

    def _log(self, level: int, message: str) -> None:
        if self._ranks.leads:
            logger.log(level, "%s", message)


def _outcome(look: Callable[[], T]) -> tuple[T | None, StepError | None]:
    """A result or an error, to be told to other ranks: one that raised alone would leave them waiting."""
    try:
        return look(), None
    except StepError as error:
        return None, error
