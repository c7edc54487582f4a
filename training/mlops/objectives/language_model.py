"""Learn the next token of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from mlops.contract.section import Section
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.shards.batch import Batch
from mlops.metrics.predictions import Floats, Predictions

IGNORED: Final = -100
"""Label of padding, which has no loss."""


class LanguageModelling:
    """Implements :class:`mlops.Objective`."""

    num_outputs = 1
    columns: Mapping[str, str] = {"loss": "double", "num_tokens": "long", "perplexity": "double"}

    def __init__(self, settings: Section) -> None:
        pass

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return language_model_loss(model, batch)

    def predict(self, outputs: Tensor, batch: Batch) -> Floats:
        """Return ``[B]``, the losses of each sequence in nats, added up in float64: the sum is that of any block."""
        losses = token_losses(outputs, batch.labels.to(outputs.device))
        summed: Floats = losses.sum(1, dtype=torch.float64).cpu().numpy()
        return summed

    def check_labels(self, labels: Floats) -> None:
        """Tokens have been checked where they were made."""

    def answer(self, predictions: Predictions) -> Mapping[str, npt.NDArray[Any]]:
        """
        :return: ``loss``, the mean loss of a token in nats; ``num_tokens``, with the document's end; ``perplexity``,
            the exponential of ``loss``
        """
        num_tokens = predictions.labels
        loss = predictions.predicted.astype(np.float64) / num_tokens
        with np.errstate(over="ignore"):
            perplexity = np.exp(loss)
        if len(wrong := np.flatnonzero(~np.isfinite(perplexity))):
            raise BadDataError(f"the model's loss of document {wrong[0]} is {loss[wrong[0]]:g} nats a token")
        return {"loss": loss, "num_tokens": num_tokens.astype(np.int64), "perplexity": perplexity}


def language_model_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of the next token, in nats, averaged over a sequence. ``[B]``"""
    return token_losses(model(batch.features), batch.labels).mean(1)


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
