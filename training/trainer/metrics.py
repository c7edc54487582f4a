"""
Metrics on numpy arrays. Binary scores are logits; N rows in Q queries, query q is rows offsets[q]:offsets[q+1].

Of a language model a row is a sequence or a document: its label the number of its tokens, its score their losses' sum.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from mlops_provider.step import BadConfigError, BadDataError

Floats = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.int64]

OBJECTIVE_METRICS: Final = {"ranking": "ndcg@K", "binary": "auc", "language_model": "perplexity"}


def check_metric(metric: str, objective: str, *, grouped: bool) -> None:
    """:raises BadConfigError: where the metric is unknown, or does not fit the objective or the feature set"""
    if objective not in OBJECTIVE_METRICS:
        raise BadConfigError(f"unknown objective {objective!r}; known are {', '.join(OBJECTIVE_METRICS)}")
    known = "ndcg@K" if cutoff_of(metric) is not None else metric
    if known not in OBJECTIVE_METRICS.values():
        raise BadConfigError(f"unknown metric {metric!r}; known are ndcg@K (e.g. ndcg@10), auc and perplexity")
    if known != OBJECTIVE_METRICS[objective]:
        raise BadConfigError(
            f"metric {metric!r} does not fit the objective {objective!r}; use {OBJECTIVE_METRICS[objective]}"
        )
    if objective == "ranking" and not grouped:
        raise BadConfigError("objective 'ranking' needs queries, but the feature set groups nothing; set its group_by")


def direction(metric: str) -> int:
    """1 where a higher value is better, -1 where a lower one is."""
    return -1 if metric == "perplexity" else 1


def cutoff_of(metric: str) -> int | None:
    """10 for ``ndcg@10``; None for anything that is not NDCG."""
    name, _, cutoff = metric.partition("@")
    return int(cutoff) if name == "ndcg" and cutoff.isdigit() and int(cutoff) > 0 else None


def ndcg(labels: Floats, scores: Floats, offsets: IntArray, cutoff: int) -> npt.NDArray[np.float64]:
    """
    NDCG@cutoff of each query, as scikit-learn's ``ndcg_score`` with gains ``2^relevance - 1``.

    Documents of equal score share the mean of their discounts (McSherry & Najork 2008). A query without any
    relevant document has no ideal order: it is NaN, to be left out of the mean and counted.

    :return: ``[Q]``
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


class WeightedAuc:
    """
    Area under the ROC curve (the probability that a positive outranks a negative, ties count half) for many weightings.

    Sorting once makes each weighting O(N), which is what a bootstrap needs.
    """

    def __init__(self, labels: Floats, scores: Floats) -> None:
        self._order = np.argsort(scores, kind="stable")
        self._positive = labels[self._order] > 0
        ordered = scores[self._order]
        self._ties = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, int)

    def __call__(self, weights: Floats | IntArray) -> float:
        """:return: NaN where one class is missing"""
        weights = weights[self._order]
        positive = np.add.reduceat(weights * self._positive, self._ties)
        negative = np.add.reduceat(weights * ~self._positive, self._ties)
        pairs = positive.sum() * negative.sum()
        won = (positive * (np.cumsum(negative) - negative / 2)).sum()
        return float(won / pairs) if pairs else float("nan")


def auc(labels: Floats, scores: Floats) -> float:
    """:return: NaN where one class is missing"""
    return WeightedAuc(labels, scores)(np.ones(len(labels))) if len(labels) else float("nan")


def log_loss(labels: Floats, logits: Floats) -> float:
    """Mean binary cross entropy, in nats."""
    logits = logits.astype(np.float64)
    return float(np.mean(np.logaddexp(0, logits) - labels * logits))


def perplexity(num_tokens: Floats, losses: Floats) -> float:
    """
    ``exp`` of the mean loss of a token.

    :param num_tokens: of each sequence or document
    :param losses: cross entropies of these tokens in nats, added up
    """
    return float(np.exp(losses.sum(dtype=np.float64) / num_tokens.sum(dtype=np.float64)))


def measure(metric: str, labels: Floats, scores: Floats, offsets: IntArray) -> float:
    """
    The metric over a whole split.

    :raises BadDataError: where the split cannot be measured: empty, no relevant document, or one class only
    """
    if not len(labels):
        raise BadDataError(f"{metric} cannot be measured: the split has no rows")
    # Sorting would take NaN for just another score.
    if num_wrong := int((~np.isfinite(scores)).sum()):
        raise BadDataError(f"{metric} cannot be measured: {num_wrong} of {len(scores)} scores are not finite")
    cutoff = cutoff_of(metric)
    if metric == "perplexity":
        with np.errstate(over="ignore"):
            value = perplexity(labels, scores)
        reason = f"the mean loss of a token, {scores.sum() / labels.sum():g} nats, is too large"
    elif cutoff is None:
        value = auc(labels, scores)
        reason = f"all {len(labels)} labels are {labels[0]:g}; AUC needs positives and negatives"
    else:
        per_query = ndcg(labels, scores, offsets, cutoff)
        value = float(np.nanmean(per_query)) if np.isfinite(per_query).any() else float("nan")
        reason = f"none of the {len(per_query)} queries has a document of relevance above 0"
    if not np.isfinite(value):
        raise BadDataError(f"{metric} cannot be measured: {reason}")
    return value
