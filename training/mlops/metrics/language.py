"""Metrics of language models. A label is the number of a document's tokens, a prediction the sum of their losses."""

from __future__ import annotations

import numpy as np

from mlops.metrics.predictions import Predictions
from mlops.metrics.weighted import Array, Weighted, of_sums, ratio


def weighted_perplexity(predictions: Predictions, parameter: None) -> Weighted:
    """Return the exponential of the mean loss of a token: a long document counts more than a short one."""
    losses, num_tokens = predictions.predicted, predictions.labels
    mean = float(losses.sum() / num_tokens.sum())
    return of_sums(
        np.stack([losses, num_tokens], axis=1).astype(np.float64),
        _exp_ratio,
        predictions.offsets,
        undefined=f"the mean loss of a token, {mean:g} nats, is too large",
    )


def _exp_ratio(sums: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.exp(ratio(sums))
