"""Metrics of the order in which a model puts the documents of a query."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlops.metrics.predictions import Floats, IntArray, Predictions
from mlops.metrics.weighted import Weighted, mean_over_samples


def weighted_ndcg(predictions: Predictions, cutoff: float) -> Weighted:
    """See :func:`ndcg`; the mean of the queries that have a relevant document."""
    found = ndcg(predictions.labels, predictions.predicted, predictions.offsets, int(cutoff))
    return mean_over_samples(found, undefined=_undefined(predictions))


def weighted_reciprocal_rank(predictions: Predictions, parameter: None) -> Weighted:
    """See :func:`reciprocal_ranks`; the mean of the queries that have a relevant document."""
    found = reciprocal_ranks(predictions.labels, predictions.predicted, predictions.offsets)
    return mean_over_samples(found, undefined=_undefined(predictions))


def _undefined(predictions: Predictions) -> str:
    return f"none of the {predictions.num_samples} queries has a document of relevance above 0"


def ndcg(labels: Floats, scores: Floats, offsets: IntArray, cutoff: int) -> npt.NDArray[np.float64]:
    """
    NDCG@cutoff of each query, as scikit-learn's ``ndcg_score`` with gains ``2^relevance - 1``.

    Documents of equal score share the mean of their discounts (McSherry & Najork 2008). A query without any
    relevant document has no ideal order: it is NaN, to be left out of the mean and counted.

    :return: ``[S]``
    """
    gains = np.exp2(labels.astype(np.float64)) - 1
    ideal = _dcg(gains, gains, offsets, cutoff)
    with np.errstate(invalid="ignore"):
        return np.where(ideal > 0, _dcg(gains, scores, offsets, cutoff) / ideal, np.nan)


def _dcg(gains: Floats, scores: Floats, offsets: IntArray, cutoff: int) -> npt.NDArray[np.float64]:
    num_queries = len(offsets) - 1
    query = np.repeat(np.arange(num_queries), np.diff(offsets))
    order = np.lexsort((-scores, query))
    query, gains, scores = query[order], gains[order], scores[order]
    position = np.arange(len(query)) - offsets[query]
    discount = np.where(position < cutoff, 1 / np.log2(position + 2), 0.0)
    starts_tie = np.ones(len(query), bool)
    starts_tie[1:] = (query[1:] != query[:-1]) | (scores[1:] != scores[:-1])
    tie = np.cumsum(starts_tie) - 1
    mean_discount = np.bincount(tie, discount) / np.bincount(tie)
    return np.bincount(query, gains * mean_discount[tie], minlength=num_queries).astype(np.float64)


def reciprocal_ranks(labels: Floats, scores: Floats, offsets: IntArray) -> npt.NDArray[np.float64]:
    """
    1 / place of each query's first relevant document, NaN where there is none. Their mean is MRR.

    Of equal scores the last place counts: a model that tells nothing apart earns nothing.

    :return: ``[S]``
    """
    if len(offsets) == 1:
        return np.empty(0)
    relevant = np.where(labels > 0, scores.astype(np.float64), -np.inf)
    best = np.maximum.reduceat(relevant, offsets[:-1])
    place = np.add.reduceat(scores >= np.repeat(best, np.diff(offsets)), offsets[:-1], dtype=np.float64)
    return np.where(np.isfinite(best), 1 / place, np.nan)
