"""
Score documents with a language model.

A document is read by itself, from its beginning, in sequences of the model's context: its losses depend on nothing but
the document, so that a bootstrap may draw documents. Sequences it may not draw, for those of a document are alike.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import torch
from torch import nn

from mlops.data.shards.batch import IntArray
from mlops.features.token_set import FittedTokens
from mlops.metrics.predictions import Floats
from mlops.objectives.language_model import IGNORED, token_losses
from mlops.objectives.scoring import SCORING_TOKENS, evaluating


def score_documents(
    model: nn.Module, fitted: FittedTokens, rows: pl.DataFrame, device: torch.device
) -> tuple[Floats, Floats]:
    """
    :param rows: a document each, as they are in a snapshot
    :return: ``[N]`` tokens of each document with its end, all of which are predicted; ``[N]`` their cross entropies in
        nats, added up
    """
    documents = fitted.encode_rows(rows)
    with evaluating(model), torch.inference_mode():
        losses = [_loss(model, fitted, document, device) for document in documents]
    return np.array([len(document) + 1 for document in documents], np.float32), np.array(losses, np.float32)


def _loss(model: nn.Module, fitted: FittedTokens, document: IntArray, device: torch.device) -> float:
    inputs, labels = (torch.from_numpy(each) for each in _sequences(document, fitted.context, fitted.end_of_document))
    at_once, total = max(1, SCORING_TOKENS // fitted.context), 0.0
    for first in range(0, len(inputs), at_once):
        part = slice(first, first + at_once)
        losses = token_losses(model(inputs[part].to(device)), labels[part].to(device))
        total += float(losses.sum(dtype=torch.float64))
    return total


def _sequences(document: IntArray, context: int, end: int) -> tuple[IntArray, IntArray]:
    """
    Inputs and labels of a document, ``[S, C]`` each: what came before it is another one's end, and its own is a label.
    """
    num_labels = len(document) + 1
    size = -(-num_labels // context) * context
    inputs, labels = np.full(size, end, np.int64), np.full(size, IGNORED, np.int64)
    inputs[1:num_labels], labels[: num_labels - 1], labels[num_labels - 1] = document, document, end
    return inputs.reshape(-1, context), labels.reshape(-1, context)
