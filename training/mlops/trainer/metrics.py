"""
Metrics on numpy arrays. Binary scores are logits; N rows in S samples, sample s is rows ``offsets[s]:offsets[s + 1]``.

A sample is a query where rows are grouped, else a row. Each metric is a function of the samples' weights, so that a
bootstrap, which weighs them by how often it drew them, does its sorting once.

Of a language model a row is a sequence or a document: its label the number of its tokens, its score their losses' sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from mlops.contract.objectives import OBJECTIVE_METRICS
from mlops.contract.step import BadConfigError, BadDataError

Floats = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.int64]
Weighted = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
"""Weights of the samples ``[R, S]`` to the metric's values ``[R]``, NaN where it cannot be measured."""

LOWER_IS_BETTER: Final = frozenset({"log_loss", "calibration_error", "perplexity"})
CALIBRATION_BINS: Final = 15


def check_metric(metric: str, objective: str, *, grouped: bool) -> None:
    """:raises BadConfigError: where the metric is unknown, or does not fit the objective or the feature set"""
    if objective not in OBJECTIVE_METRICS:
        raise BadConfigError(f"unknown objective {objective!r}; known are {', '.join(OBJECTIVE_METRICS)}")
    fitting = ", ".join(OBJECTIVE_METRICS[objective])
    if not any(fits(metric, each) for each in OBJECTIVE_METRICS):
        known = ", ".join(name for names in OBJECTIVE_METRICS.values() for name in names)
        raise BadConfigError(
            f"unknown metric {metric!r}; known are {known} (K a number, as in ndcg@10), and {objective!r} is measured "
            f"by {fitting}"
        )
    if not fits(metric, objective):
        raise BadConfigError(f"metric {metric!r} does not fit the objective {objective!r}; use {fitting}")
    if objective == "ranking" and not grouped:
        raise BadConfigError("objective 'ranking' needs queries, but the feature set groups nothing; set its group_by")


def fits(metric: str, objective: str) -> bool:
    return _form(metric) in OBJECTIVE_METRICS[objective]


def direction(metric: str) -> int:
    """1 where a higher value is better, -1 where a lower one is."""
    return -1 if metric in LOWER_IS_BETTER else 1


def named(metric: str) -> str:
    """For people: ``AUC``, ``log loss``."""
    return metric.upper() if metric.partition("@")[0] in ("ndcg", "mrr", "auc", "f1") else metric.replace("_", " ")


def cutoff_of(metric: str) -> int | None:
    """10 for ``ndcg@10``; None for anything that is not NDCG."""
    name, _, cutoff = metric.partition("@")
    return int(cutoff) if name == "ndcg" and cutoff.isdigit() and int(cutoff) > 0 else None


def _form(metric: str) -> str:
    """As in :data:`OBJECTIVE_METRICS`."""
    if cutoff_of(metric) is not None:
        return "ndcg@K"
    return metric if metric != "ndcg@K" else ""


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


def log_losses(labels: Floats, logits: Floats) -> npt.NDArray[np.float64]:
    """Binary cross entropy of each row, in nats."""
    logits = logits.astype(np.float64)
    losses: npt.NDArray[np.float64] = np.logaddexp(0, logits) - labels * logits
    return losses


def probabilities(logits: Floats) -> npt.NDArray[np.float64]:
    # Not 1 / (1 + exp(-x)), which overflows for large negative ones.
    found: npt.NDArray[np.float64] = np.exp(-np.logaddexp(0, -logits.astype(np.float64)))
    return found


def weighted(metric: str, labels: Floats, scores: Floats, offsets: IntArray) -> Weighted:
    """The metric as a function of the samples' weights."""
    if metric == "auc":
        by_rows = WeightedAuc(labels, scores)
        sample = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return lambda weights: np.array([by_rows(each[sample]) for each in weights])
    if (cutoff := cutoff_of(metric)) is not None:
        return _mean_of(ndcg(labels, scores, offsets, cutoff))
    if metric == "mrr":
        return _mean_of(reciprocal_ranks(labels, scores, offsets))
    if metric == "perplexity":
        return _of_sums(np.stack([scores, labels], axis=1).astype(np.float64), _exp_ratio, offsets)
    return _of_sums(*_binary_terms(metric, labels, scores), offsets)


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
    value = float(weighted(metric, labels, scores, offsets)(np.ones((1, len(offsets) - 1)))[0])
    if np.isfinite(value):
        return value
    if fits(metric, "ranking"):
        reason = f"none of the {len(offsets) - 1} queries has a document of relevance above 0"
    elif metric == "perplexity":
        reason = f"the mean loss of a token, {scores.sum() / labels.sum():g} nats, is too large"
    elif metric == "auc":
        reason = f"all {len(labels)} labels are {labels[0]:g}; AUC needs positives and negatives"
    else:
        reason = f"no label and no prediction of the {len(labels)} rows is positive"
    raise BadDataError(f"{metric} cannot be measured: {reason}")


Finish = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
"""Sums over the samples ``[R, M]`` to values ``[R]``."""


def _mean_of(values: npt.NDArray[np.float64]) -> Weighted:
    """The mean of the samples that can be measured."""
    measured = np.isfinite(values)
    terms = np.stack([np.where(measured, values, 0.0), measured], axis=1)
    return lambda weights: _ratio(weights @ terms)


def _of_sums(terms: npt.NDArray[np.float64], finish: Finish, offsets: IntArray) -> Weighted:
    """:param terms: ``[N, M]``, of which a metric needs no more than the sums"""
    by_sample = np.add.reduceat(terms, offsets[:-1], axis=0) if len(offsets) > 1 else terms
    return lambda weights: finish(weights @ by_sample)


def _binary_terms(metric: str, labels: Floats, logits: Floats) -> tuple[npt.NDArray[np.float64], Finish]:
    positive, ones = (labels > 0).astype(np.float64), np.ones(len(labels))
    match metric:
        case "log_loss":
            return np.stack([log_losses(labels, logits), ones], axis=1), _ratio
        case "f1":  # of the rows that are more probable than not
            predicted = (logits > 0).astype(np.float64)
            return np.stack([2 * positive * predicted, positive + predicted], axis=1), _ratio
        case "calibration_error":
            return _calibration_terms(positive, logits), _summed_error
    raise AssertionError(f"{metric} is checked by check_metric")


def _calibration_terms(positive: npt.NDArray[np.float64], logits: Floats) -> npt.NDArray[np.float64]:
    """
    Return the terms of the expected calibration error over bins of equal counts (Nixon et al. 2019): the mean distance
    of predicted probability and observed frequency. It is above 0 by chance alone, the more the fewer rows there are.
    """
    edges = np.quantile(logits, np.linspace(0, 1, CALIBRATION_BINS + 1)[1:-1])
    terms = np.zeros((len(logits), CALIBRATION_BINS + 1))
    terms[np.arange(len(logits)), np.searchsorted(edges, logits, side="right")] = positive - probabilities(logits)
    terms[:, -1] = 1
    return terms


def _ratio(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(sums[:, 1] > 0, sums[:, 0] / sums[:, 1], np.nan)


def _exp_ratio(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return np.exp(_ratio(sums))


def _summed_error(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return _ratio(np.stack([np.abs(sums[:, :-1]).sum(axis=1), sums[:, -1]], axis=1))
