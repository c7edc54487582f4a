"""The comparison of two trainings to the bit: their steps, their epochs, their weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import torch

from mlops.contract.checkpoint_markers import Saved
from mlops.contract.learners import TORCH
from mlops.contract.refs import CheckpointRef
from mlops.store import Store
from mlops.trainer.checkpoint.listing import read_listing
from mlops.trainer.checkpoint.loading import load_whole
from mlops.trainer.checkpoint.tree import flatten
from mlops.trainer.checkpoint.weights import deserialise
from mlops.trainer.fingerprint import StepFingerprint

CLOCK: Final = frozenset({"seconds", "samples_per_second", "finished_at"})
"""Fields of an epoch's record that differ between any two trainings."""


def compare_training(store: Store, then: CheckpointRef, now: CheckpointRef) -> dict[str, str]:
    """Return a sentence for each of ``steps``, ``epochs``, ``checkpoints`` and ``weights`` that differs."""
    found = {"steps": _steps(store, then, now), "epochs": _epochs(store, then, now)}
    if then.artifacts["weights"].sha256 != now.artifacts["weights"].sha256:
        found["checkpoints"] = _checkpoints(store, then.place, now.place)
        if json.loads(store.read(then.artifacts["model"]))["learner"] != TORCH:
            found["weights"] = "the stored models are not the same"
            return {what: sentence for what, sentence in found.items() if sentence}
        states = [deserialise(store.read(ref.artifacts["weights"]), torch.device("cpu")) for ref in (then, now)]
        found["weights"] = f"the weights: {first_difference(*states) or 'equal tensors in another form'}"
    return {what: sentence for what, sentence in found.items() if sentence}


def first_difference(then: dict[str, Any], now: dict[str, Any]) -> str | None:
    """
    Describe the first tensor or value, by name, that is missing or not the same to the bit; None if all are equal.
    """
    old, new = flatten(then), flatten(now)
    if missing := sorted(old.tensors.keys() ^ new.tensors.keys()):
        return f"only one of them has {missing[0]}"
    unequal = [key for key in old.tensors if not _same(old.tensors[key], new.tensors[key])]
    if unequal:
        tensors = old.tensors[unequal[0]], new.tensors[unequal[0]]
        by = f"of shape {list(tensors[0].shape)} then and {list(tensors[1].shape)} now"
        if tensors[0].shape == tensors[1].shape:
            by = f"by at most {float((tensors[0].double() - tensors[1].double()).abs().max()):.3g}"
        return f"{unequal[0]} differs, {by}; so do {len(unequal) - 1} of the other {len(old.tensors) - 1} tensors"
    values = sorted(key for key in old.values.keys() | new.values.keys() if old.values.get(key) != new.values.get(key))
    return f"{values[0]} differs, {old.values.get(values[0])} then, {new.values.get(values[0])} now" if values else None


def _same(then: torch.Tensor, now: torch.Tensor) -> bool:
    if then.dtype != now.dtype or then.shape != now.shape:
        return False
    # As bytes: NaN equals NaN, and 0 is not -0.
    return torch.equal(*(tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (then, now)))


def _steps(store: Store, then: CheckpointRef, now: CheckpointRef) -> str | None:
    if "trail" not in then.artifacts or "trail" not in now.artifacts:
        return None  # the loop was a program's own
    trails = [StepFingerprint.of(_read(store, ref, "trail")) for ref in (then, now)]
    if (parted := trails[0].parts_from(trails[1])) is None:
        return None
    equal, unequal = parted
    if unequal == equal + 1:
        return f"optimizer step {unequal} is the first that differs, by its gradient's norm"
    return f"the first optimizer step that differs is one of {equal + 1} to {unequal}, by its gradient's norm"


def _epochs(store: Store, then: CheckpointRef, now: CheckpointRef) -> str | None:
    histories = [_read(store, ref, "history") for ref in (then, now)]
    for old, new in zip(*histories, strict=False):
        unequal = [name for name in sorted(old) if name not in CLOCK and old[name] != new.get(name)]
        if unequal:
            values = ", ".join(f"{name} {old[name]} then and {new.get(name)} now" for name in unequal)
            return f"epoch {old['epoch']} is the first that differs: {values}"
    if len(histories[0]) != len(histories[1]):
        return f"{len(histories[0])} epochs then, {len(histories[1])} now"
    if then.epoch != now.epoch:
        return f"the best epoch was {then.epoch} then and is {now.epoch} now"
    return None


def _checkpoints(store: Store, then: str, now: str) -> str | None:
    """
    Describe the first difference between checkpoints that both trainings still have at the same step; None if there is
    none.
    """
    kept: list[Mapping[int, Saved]] = [
        {saved.step: saved for saved in read_listing(store, place).complete} for place in (then, now)
    ]
    for step in sorted(kept[0].keys() & kept[1].keys()):
        if difference := first_difference(*(load_whole(store, saved[step]) for saved in kept)):
            return f"the checkpoints after step {step}: {difference}"
    return None


def _read(store: Store, ref: CheckpointRef, name: str) -> Any:
    return json.loads(store.read(ref.artifacts[name]))
