"""The interface of a trained model in evaluation: raw rows in, scores out, compared with another model's."""

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
from mlops.data.shards.feature_table import offsets_of
from mlops.data.snapshots.snapshot import Snapshot
from mlops.metrics.predictions import Floats, IntArray, Predictions, num_not_finite
from mlops.objectives.objective import LoadedObjective
from mlops.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """N rows with a model's predictions, in the order of its feature set."""

    rows: IntArray
    """``[N]``, position of each in the raw rows; a feature set may leave rows out."""
    predictions: Predictions
    """Of these N rows."""

    def check_finite(self, whose: str) -> None:
        """
        Check that all scores are finite.

        :raises BadDataError: if a score is not finite
        """
        if num_wrong := num_not_finite(self.predictions.predicted):
            raise BadDataError(f"{num_wrong} of {len(self.rows)} scores of {whose} are not finite")

    def keep(self, kept: npt.NDArray[np.bool_]) -> Scored:
        """Keep only some of the rows; queries that lose all their rows are dropped."""
        found = self.predictions
        lengths = np.add.reduceat(kept, found.offsets[:-1]) if len(self.rows) else np.empty(0, np.int64)
        return Scored(
            rows=self.rows[kept],
            predictions=Predictions(
                labels=found.labels[kept],
                predicted=found.predicted[kept],
                offsets=offsets_of(lengths[lengths > 0]),
                settings=found.settings,
            ),
        )


def days_seen(store: Store, champion: CheckpointRef, candidate: CheckpointRef) -> int:
    """
    Count the candidate's held-out days of which the champion has seen rows: it was fitted on them, or its best epoch
    chosen by them.

    The result is 0 if both hold out the same keys: the champion has never seen those, on whatever day.
    """
    seen, held = (Snapshot.open(store, checkpoint.ancestor(DatasetRef)) for checkpoint in (champion, candidate))
    if "key" in seen.manifest.split and seen.manifest.split == held.manifest.split:
        return 0
    # A snapshot of the time before splits were its own tells only its days.
    parts = [seen.split_days(name) for name in ("train", "validation")] if seen.manifest.splits else [seen.days]
    return len({day for days in parts for day in days} & {*held.split_days("test")})


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDescription:
    """The ``model`` artifact of a checkpoint, which says how to build the model that the weights belong to."""

    model: str
    model_args: dict[str, object]
    num_features: int
    """Number of columns of the input; for tokens, their number in a sequence."""
    vocab_size: int | None = None
    """Number of distinct tokens; None if the inputs are not tokens."""
    num_outputs: int = 1
    """Numbers that it returns for a row."""
    objective: str
    objective_settings: dict[str, object]
    columns: dict[str, str]
    """Columns of a served answer, with MLflow's types."""
    metric: str
    metric_title: str
    """Name of the metric for people."""
    loss: str | None
    grouped: bool


def describe(store: Store, checkpoint: CheckpointRef) -> ModelDescription:
    return ModelDescription(**json.loads(store.read(checkpoint.artifacts["model"])))


class TrainedModel(Protocol):
    """
    The protocol of a checkpoint with its own features, code and weights. Evaluation calls ``score`` with the held-out
    rows; to measure it as a server it then takes ``samples`` of these, and calls ``serve`` with their ``columns``, some
    of them with odd values.
    """

    @property
    def description(self) -> ModelDescription: ...

    @property
    def objective(self) -> LoadedObjective: ...

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that a server needs: weights, fitted state, and the code of both."""

    @property
    def columns(self) -> Sequence[str]:
        """Raw columns that a request has."""

    def score(self, rows: pl.DataFrame) -> Scored:
        """
        Score rows.

        :param rows: raw rows, as they are in a snapshot
        :raises BadDataError: if the model's features cannot be made from these rows
        """

    def serve(self, request: Sequence[Mapping[str, Any]]) -> Floats:
        """
        Return the predictions of a request, as a server makes them.

        :raises BadDataError: if the model's features cannot be made from it
        """

    def samples(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, IntArray]:
        """Return the raw rows that have features, sample by sample; and ``[S + 1]``, where each sample begins."""


def aligned(candidate: Scored, champion: Scored) -> tuple[Scored, Predictions]:
    """
    Match the rows that both models score, in the candidate's order and queries.

    :return: the candidate's part, and the champion's predictions for the same rows
    :raises BadDataError: where they have no row in common
    """
    where = np.full(int(max(candidate.rows.max(initial=-1), champion.rows.max(initial=-1))) + 1, -1)
    where[champion.rows] = np.arange(len(champion.rows))
    common = where[candidate.rows] >= 0
    if not common.any():
        raise BadDataError("the candidate and the champion have no held-out row in common; compare their feature sets")
    both = candidate if common.all() else candidate.keep(common)
    found = both.predictions
    predicted = champion.predictions.predicted[where[both.rows]]
    return both, Predictions(
        labels=found.labels, predicted=predicted, offsets=found.offsets, settings=champion.predictions.settings
    )
