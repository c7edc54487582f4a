"""Better than production, or not: the decision, and how sure the numbers are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from training.trainer.metrics import Floats, IntArray, WeightedAuc, cutoff_of, direction, ndcg, perplexity

RESAMPLES: Final = 1000
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    passed: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A value and its 95% bootstrap interval (percentile method)."""

    value: float
    low: float
    high: float


def decide(
    *,
    metric: str,
    candidate: float,
    champion: float | None,
    champion_version: str | None,
    min_improvement: float,
    days_seen: int = 0,
) -> Verdict:
    """
    The gate: more than ``min_improvement`` better, relative to the champion; anything passes where there is none.

    Both values are measured on the same rows.

    :param days_seen: held-out days that the champion was trained on, as when an old night is run again
    """
    name = metric.upper()
    if champion is None:
        return Verdict(passed=True, reason=f"No champion to beat: {name} is {candidate:.4f} on the held-out data.")
    better = direction(metric)
    needed = champion * (1 + better * min_improvement)
    passed = better * candidate > better * needed
    change = f" ({(candidate / champion - 1) * 100:+.2f}%)" if champion else ""
    return Verdict(
        passed=passed,
        reason=f"{name} {candidate:.4f} against {champion:.4f} of the champion, version {champion_version}{change}: "
        f"{'more' if passed else 'not more'} than the {min_improvement:.2%} improvement that is asked for."
        + (f" The champion was trained on {days_seen} of the held-out days, which favours it." if days_seen else ""),
    )


def bootstrap(
    metric: str, labels: Floats, offsets: IntArray, candidate: Floats, champion: Floats | None, seed: int = 0
) -> dict[str, Interval]:
    """
    Intervals of the candidate, the champion and their difference, each resample drawn alike for both (paired).

    Resampled are queries for NDCG, rows for AUC, documents for perplexity.

    :return: by ``candidate`` and, where there is a champion, ``champion`` and ``difference``
    """
    rng = np.random.default_rng(seed)
    cutoff = cutoff_of(metric)
    models = {"candidate": candidate} | ({} if champion is None else {"champion": champion})
    if cutoff is not None:
        per_query = {name: ndcg(labels, scores, offsets, cutoff) for name, scores in models.items()}
        per_query = {name: values[np.isfinite(values)] for name, values in per_query.items()}
        size = len(per_query["candidate"])
        counts = rng.multinomial(size, np.full(size, 1 / size), size=RESAMPLES)
        values = {name: float(value.mean()) for name, value in per_query.items()}
        resampled = {name: counts @ value / size for name, value in per_query.items()}
    elif metric == "perplexity":
        size = len(labels)
        counts = rng.multinomial(size, np.full(size, 1 / size), size=RESAMPLES)
        values = {name: perplexity(labels, losses) for name, losses in models.items()}
        resampled = {name: np.exp((counts @ losses) / (counts @ labels)) for name, losses in models.items()}
    else:
        size = len(labels)
        aucs = {name: WeightedAuc(labels, scores) for name, scores in models.items()}
        values = {name: measure(np.ones(size)) for name, measure in aucs.items()}
        resampled = {name: np.empty(RESAMPLES) for name in models}
        for index in range(RESAMPLES):
            weights = np.bincount(rng.integers(size, size=size), minlength=size)
            for name, measure in aucs.items():
                resampled[name][index] = measure(weights)
    if champion is not None:
        values["difference"] = values["candidate"] - values["champion"]
        resampled["difference"] = resampled["candidate"] - resampled["champion"]
    return {name: _interval(values[name], resampled[name]) for name in values}


def _interval(value: float, resampled: npt.NDArray[np.float64]) -> Interval:
    # A resample of a tiny hold-out may hold one class only, and then has no AUC.
    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = np.nanpercentile(resampled, [tail, 100 - tail])
    return Interval(value=value, low=float(low), high=float(high))
