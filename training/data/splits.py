"""Splits by time: what is held out is newer than everything that is fitted on, as it will be in production."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlops_provider.step import BadDataError

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitConfig:
    """How many of the window's days are held out."""

    validation_days: int
    """Days before the test days; the best epoch is chosen on them."""
    test_days: int
    """The newest days; candidate and champion are compared on them."""


def days_of(days: Sequence[str], split: SplitConfig) -> dict[str, list[str]]:
    """
    Deal out a snapshot's days.

    :param days: ``YYYY-MM-DD``, those that have rows
    :return: days of ``train``, ``validation`` and ``test``, oldest first; no day is in two of them
    :raises BadDataError: where no day is left to train on
    """
    ordered = sorted(set(days))
    num_train = len(ordered) - split.validation_days - split.test_days
    if num_train < 1:
        raise BadDataError(
            f"the snapshot has {len(ordered)} days with rows, too few for validation_days={split.validation_days}, "
            f"test_days={split.test_days} and one day to train on; raise ingest.window_days, or start the pipeline "
            "where its sources reach further back"
        )
    test_start = len(ordered) - split.test_days
    return {
        "train": ordered[:num_train],
        "validation": ordered[num_train:test_start],
        "test": ordered[test_start:],
    }
