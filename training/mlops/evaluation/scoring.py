"""What a trained model is to evaluation: raw rows in, scores out, held against another model's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from mlops.contract.refs import CheckpointRef, DatasetRef
from mlops.contract.step import BadDataError
from mlops.data.snapshots.snapshot import Snapshot
from mlops.store import Store
from mlops.trainer.metrics import Floats, IntArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """N rows with their scores, in the order of the model's feature set."""

    rows: IntArray
    """``[N]``, position of each in the raw rows; a feature set may leave rows out."""
    scores: npt.NDArray[np.float32]
    """``[N]``; logits where the objective is binary; of documents, their losses added up."""
    labels: npt.NDArray[np.float32]
    """``[N]``; of documents, the number of their tokens."""
    offsets: IntArray
    """``[Q + 1]``; query q is rows offsets[q]:offsets[q + 1]; without queries each row is one."""

    def check_finite(self, whose: str) -> None:
        """:raises BadDataError: where a score is not"""
        if num_wrong := int((~np.isfinite(self.scores)).sum()):
            raise BadDataError(f"{num_wrong} of {len(self.scores)} scores of {whose} are not finite")

    def keep(self, kept: npt.NDArray[np.bool_]) -> Scored:
        """Only some of the rows; queries that lose all theirs are gone."""
        lengths = np.add.reduceat(kept, self.offsets[:-1]) if len(self.rows) else np.empty(0, np.int64)
        return Scored(
            rows=self.rows[kept],
            scores=self.scores[kept],
            labels=self.labels[kept],
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[lengths > 0], dtype=np.int64)]),
        )


def days_seen(store: Store, champion: CheckpointRef, candidate: CheckpointRef) -> int:
    """
    On how many of the candidate's held-out days the champion has seen rows: fitted on them, or its best epoch chosen.

    0 where both hold out the same keys: those it has never seen, on whatever day.
    """
    seen, held = (Snapshot.open(store, checkpoint.ancestor(DatasetRef)) for checkpoint in (champion, candidate))
    if "key" in seen.manifest.split and seen.manifest.split == held.manifest.split:
        return 0
    # A snapshot of the time before splits were its own tells only its days.
    parts = [seen.split_days(name) for name in ("train", "validation")] if seen.manifest.splits else [seen.days]
    return len({day for days in parts for day in days} & {*held.split_days("test")})


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDescription:
    """The ``model`` artifact of a checkpoint: how to build what the weights belong to."""

    model: str
    model_args: dict[str, object]
    num_features: int
    """Columns of the input; of tokens, their number in a sequence."""
    vocab_size: int | None = None
    """None where the inputs are no tokens."""
    objective: str
    metric: str
    loss: str | None
    grouped: bool


def describe(store: Store, checkpoint: CheckpointRef) -> ModelDescription:
    return ModelDescription(**json.loads(store.read(checkpoint.artifacts["model"])))


class TrainedModel(Protocol):
    """
    A checkpoint with its own features, code and weights. Evaluation has it ``score`` what is held out; to know it as a
    server it then takes ``samples`` of that, and has it ``serve`` their ``columns``, some of them with odd values.
    """

    @property
    def description(self) -> ModelDescription: ...

    @property
    def num_bytes(self) -> int:
        """Return the bytes that a server needs: weights, fitted state, and the code of both."""

    @property
    def columns(self) -> Sequence[str]:
        """Raw columns that a request has."""

    def score(self, rows: pl.DataFrame) -> Scored:
        """
        :param rows: raw ones, as they are in a snapshot
        :raises BadDataError: where the model's features cannot be made of these rows
        """

    def serve(self, request: Sequence[Mapping[str, Any]]) -> Floats:
        """
        The scores of a request, as a server makes them.

        :raises BadDataError: where the model's features cannot be made of it
        """

    def samples(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, IntArray]:
        """:return: the raw rows that have features, sample by sample; ``[S + 1]`` where each sample begins"""


def aligned(candidate: Scored, champion: Scored) -> tuple[Scored, npt.NDArray[np.float32]]:
    """
    The rows that both models score, in the candidate's order and queries.

    :return: the candidate's part, and the champion's scores of the same rows
    :raises BadDataError: where they have no row in common
    """
    where = np.full(int(max(candidate.rows.max(initial=-1), champion.rows.max(initial=-1))) + 1, -1)
    where[champion.rows] = np.arange(len(champion.rows))
    common = where[candidate.rows] >= 0
    if not common.any():
        raise BadDataError("the candidate and the champion have no held-out row in common; compare their feature sets")
    both = candidate if common.all() else candidate.keep(common)
    return both, champion.scores[where[both.rows]]
