"""The protocol of checkpoints, by chance: process groups that meet, sleep and die at each operation; bits that flip."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from checkpoint_world import PromiseBrokenError, explore

from mlops.contract.checkpoint_listing import step_of
from mlops.contract.checkpoint_markers import Saved
from mlops.trainer.checkpoint import writing
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.checkpoint.generation import Generation
from mlops.trainer.checkpoint.listing import read_listing, superseded
from mlops.trainer.checkpoint.writing import Writer

INTERLEAVINGS = int(os.environ.get("CHAOS_INTERLEAVINGS", "1000"))
FIRST_SEED = int(os.environ.get("CHAOS_SEED", "0"))
Patch = Callable[[Any, str, Any], None]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    torch.set_num_threads(threads)


@pytest.mark.timeout(300 + INTERLEAVINGS // 10)
def test_no_order_of_events_loses_a_whole_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: see what :class:`checkpoint_world.World` promises; the error has the seed and the events."""
    num_operations = explore(range(FIRST_SEED, FIRST_SEED + INTERLEAVINGS), monkeypatch.setattr)
    print(f"{INTERLEAVINGS} interleavings of {num_operations} operations")
    assert num_operations > 50 * INTERLEAVINGS, "they came far enough to be tested"


def no_fence(patch: Patch) -> None:
    patch(Generation, "check", lambda self: None)


def best_must_be_whole(patch: Patch) -> None:
    """As it was: one flipped bit in the best costs all that came after it."""

    def newest(self: Checkpoints) -> Saved | None:
        self._take()
        listing = read_listing(self.store, self.place)
        complete = {saved.step: saved for saved in listing.complete}

        def usable(saved: Saved) -> bool:
            best = complete.get(saved.best_step or 0, saved)
            return self._whole(saved) and self._whole(best)

        chosen = next((saved for saved in reversed(listing.complete) if usable(saved)), None)
        reached = chosen.step if chosen else -1
        self._writer.distrusted |= {saved.folder for saved in listing.complete if saved.step > reached}
        return chosen

    patch(Checkpoints, "newest", newest)


def one_folder_for_all(patch: Patch) -> None:
    """As it was: an old process group removes what it passed over, which the new one has written since."""
    no_fence(patch)

    def retire(self: Writer, saved: Saved) -> None:
        assert self.generation is not None
        steps = [step_of(folder) for folder in self.generation.inherited]
        for folder in read_listing(self._store, self._place).folders:
            if step_of(folder) > min([saved.step, *steps]) and folder != saved.folder:
                self._files.remove(folder)

    patch(writing, "folder_of", lambda place, step, generation: f"{place}/checkpoints/step-{step:08d}-g0001")
    patch(Writer, "_retire", retire)


def all_are_ours(patch: Patch) -> None:
    no_fence(patch)
    patch(writing, "superseded", lambda listing, **how: superseded(listing, **{**how, "ours": set(listing.folders)}))


FAULTS = [best_must_be_whole, one_folder_for_all, all_are_ours]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: Callable[[Patch], None]) -> None:
    """Broken: the test above would pass whatever the code does."""
    fault(monkeypatch.setattr)
    with pytest.raises(PromiseBrokenError):
        explore(range(3000), monkeypatch.setattr)
