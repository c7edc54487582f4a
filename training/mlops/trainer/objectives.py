"""Losses per sample, and scores for a whole split."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from mlops.contract.step import BadConfigError
from mlops.data.shards.loader import Batch, in_order

if TYPE_CHECKING:
    from mlops.data.shards.feature_table import FeatureTable

SCORING_BATCH = 1024
"""Samples scored at once: large enough to be quick, small enough for the padded batch to stay below 100 MB."""
SCORING_TOKENS = 4096
"""Tokens scored at once: with a vocabulary of 50,000 their logits take 800 MB."""


def ranking_loss(model: nn.Module, batch: Batch) -> Tensor:
    """
    Listwise softmax cross entropy (ListNet, Cao et al. 2007) with the gains ``2^relevance - 1`` as target distribution.

    :return: ``[B]``; 0 for a query without any relevant document, which says nothing about order
    """
    assert batch.mask is not None, "ranking needs grouped samples"
    scores_BD = _scores(model, batch).masked_fill(~batch.mask, float("-inf"))
    gains_BD = torch.exp2(batch.labels) - 1
    targets_BD = gains_BD / gains_BD.sum(1, keepdim=True).clamp_min(torch.finfo(gains_BD.dtype).tiny)
    # Padding has log-probability -inf and target 0; their product would be NaN.
    log_probabilities_BD = functional.log_softmax(scores_BD, dim=1).masked_fill(~batch.mask, 0.0)
    return -(targets_BD * log_probabilities_BD).sum(1)


def binary_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Binary cross entropy with logits; over the rows of a sample averaged. ``[B]``"""
    losses = functional.binary_cross_entropy_with_logits(_scores(model, batch), batch.labels, reduction="none")
    if batch.mask is None:
        return losses
    return (losses * batch.mask).sum(1) / batch.mask.sum(1)


def language_model_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of the next token, in nats, averaged over a sequence. ``[B]``"""
    return token_losses(model(batch.features), batch.labels).mean(1)


DEFAULT_LOSSES = {"ranking": ranking_loss, "binary": binary_loss, "language_model": language_model_loss}


def token_losses(logits_BCV: Tensor, labels_BC: Tensor) -> Tensor:
    """
    Cross entropies in nats, ``[B, C]``; 0 where the label is -100, which is padding.

    :raises BadConfigError: where there is not one row of logits for each token
    """
    if logits_BCV.ndim != 3 or logits_BCV.shape[:2] != labels_BC.shape:
        raise BadConfigError(
            f"the model maps tokens {list(labels_BC.shape)} to {list(logits_BCV.shape)}; "
            "logits over the vocabulary are needed for each, [B, C, V]"
        )
    losses = functional.cross_entropy(logits_BCV.float().flatten(0, 1), labels_BC.flatten(), reduction="none")
    return losses.view_as(labels_BC)


def score(model: nn.Module, table: FeatureTable, device: torch.device, *, grouped: bool) -> npt.NDArray[np.float32]:
    """The model's output for every row of a split, in its order: ``[N]``. Logits where the objective is binary."""
    was_training = model.training
    model.eval()
    parts = []
    with torch.inference_mode():
        for batch in in_order(table, SCORING_BATCH, grouped=grouped):
            parts.append(rows_of(_scores(model, batch.to(device)), batch))
    model.train(was_training)
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


def rows_of(scores: Tensor, batch: Batch) -> npt.NDArray[np.float32]:
    """
    Scores without padding, ``[N]``.

    :param batch: on the CPU
    """
    scores = scores.float().cpu()
    rows: npt.NDArray[np.float32] = (scores if batch.mask is None else scores[batch.mask]).numpy()
    return rows


def _scores(model: nn.Module, batch: Batch) -> Tensor:
    return check_scores(model(batch.features), batch)


def check_scores(scores: Tensor, batch: Batch) -> Tensor:
    """:raises BadConfigError: where there is not one score for each row"""
    if scores.shape != batch.labels.shape:
        raise BadConfigError(
            f"the model maps features {list(batch.features.shape)} to {list(scores.shape)}; "
            f"one score per row is needed, {list(batch.labels.shape)}: squeeze its last dimension"
        )
    return scores
