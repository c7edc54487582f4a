"""Score raw rows with a trained model: its own features, its own code, its own weights, all out of the store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import nn

from mlops_provider.refs import CheckpointRef, DatasetRef
from mlops_provider.step import BadConfigError, BadDataError
from training.code import load_bundled
from training.data.snapshots import Snapshot
from training.evaluation.language import check_same_tokens, score_documents
from training.features.fitted import load_fitted
from training.features.tokenise import load_tokens
from training.store import Store
from training.trainer.checkpoint.weights import deserialise
from training.trainer.config import build_model
from training.trainer.metrics import IntArray
from training.trainer.objectives import score

ROW: str = "__row"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """N rows with their scores, in the order of the model's feature set. Of a language model a row is a document."""

    rows: IntArray
    """``[N]``, position of each in the raw rows; a feature set may leave rows out."""
    scores: npt.NDArray[np.float32]
    """``[N]``; logits where the objective is binary; the sum of a document's losses, in nats."""
    labels: npt.NDArray[np.float32]
    """``[N]``; of a document the number of its tokens."""
    offsets: IntArray
    """``[Q + 1]``; query q is rows offsets[q]:offsets[q + 1]; without queries each row is one."""

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
    vocab_size: int | None
    """None where the inputs are no tokens."""
    objective: str
    metric: str
    loss: str | None
    grouped: bool


def describe(store: Store, checkpoint: CheckpointRef) -> ModelDescription:
    return ModelDescription(**json.loads(store.read(checkpoint.artifacts["model"])))


def load_model(
    store: Store, checkpoint: CheckpointRef, description: ModelDescription, scratch: Path, device: torch.device
) -> nn.Module:
    """
    The model with its trained weights, built by the code that it was trained with.

    :param scratch: folder for the unpacked code
    """
    factory = load_bundled(store.read(checkpoint.artifacts["code"]), description.model, scratch)
    model = build_model(
        factory, description.model, description.num_features, description.model_args, description.vocab_size
    )
    model.load_state_dict(deserialise(store.read(checkpoint.artifacts["weights"]), device))
    return model.to(device)


def score_rows(store: Store, checkpoint: CheckpointRef, rows: pl.DataFrame, scratch: Path) -> Scored:
    """
    Score raw rows.

    :param rows: as they are in a snapshot
    :param scratch: folder for the unpacked code
    :raises BadDataError: where the model's features cannot be made of these rows
    """
    description = describe(store, checkpoint)
    device = torch.device("cpu")
    if description.objective == "language_model":
        tokens = load_tokens(store, checkpoint.parent, scratch)
        model = load_model(store, checkpoint, description, scratch, device)
        num_tokens, losses = score_documents(model, tokens, rows, device)
        offsets = np.arange(rows.height + 1)
        return Scored(rows=offsets[:-1], scores=losses, labels=num_tokens, offsets=offsets)
    fitted = load_fitted(store, checkpoint.parent, scratch)
    table = fitted.apply(rows)
    if table.features.shape[1] != description.num_features:
        raise BadDataError(
            f"the model of {checkpoint.place} takes {description.num_features} features, "
            f"its feature set gives {table.features.shape[1]}; train it again"
        )
    model = load_model(store, checkpoint, description, scratch, device)
    return Scored(
        rows=fitted.rows(rows.with_row_index(ROW))[ROW].to_numpy().astype(np.int64),
        scores=score(model, table, device, grouped=description.grouped),
        labels=table.labels,
        offsets=table.offsets,
    )


def score_champion(
    store: Store, checkpoint: CheckpointRef, candidate: CheckpointRef, rows: pl.DataFrame, scratch: Path, named: str
) -> Scored:
    """
    Score raw rows with the model in production.

    :param candidate: that it is compared with
    :param named: the model, its version and alias, for the message
    :raises BadDataError: where it cannot be scored on this data, e.g. for a column that is gone
    """
    try:
        if describe(store, checkpoint).objective == "language_model":
            states = (json.loads(store.read(each.parent.artifacts["state"])) for each in (candidate, checkpoint))
            check_same_tokens(*states)
        return score_rows(store, checkpoint, rows, scratch)
    except (BadConfigError, BadDataError) as error:
        raise BadDataError(
            f"the model in production, {named}, cannot be scored on this data, so there is nothing to compare with: "
            f"{error}. Give the data what that model needs, or remove the alias: the next one then has no champion"
        ) from error


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
