"""The metric on parts of the hold-out: where a good average hides a bad corner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from training.trainer.metrics import Floats, IntArray, auc, cutoff_of, direction, ndcg, perplexity

MAX_VALUES: Final = 40
"""A column of more values is a key, not a group of rows."""
MIN_SAMPLES: Final = 10
"""A metric over fewer samples says nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    column: str
    value: str
    num_samples: int
    """Queries with at least one row of that value, or rows."""
    candidate: float
    champion: float | None


def slice_columns(rows: pl.DataFrame) -> list[str]:
    """Text columns that sort the rows into a handful of groups."""
    text = [name for name, dtype in rows.schema.items() if dtype in (pl.String, pl.Categorical)]
    return [name for name in text if 2 <= rows[name].n_unique() <= MAX_VALUES]


def slices(
    metric: str,
    rows: pl.DataFrame,
    columns: Sequence[str],
    *,
    labels: Floats,
    offsets: IntArray,
    candidate: Floats,
    champion: Floats | None,
) -> list[Slice]:
    """
    The metric per value of each column, worst for the candidate first; slices that cannot be measured are left out.

    :param rows: raw rows in the order of ``labels``
    """
    found = []
    for column in columns:
        names, codes = np.unique(rows[column].cast(pl.String).fill_null("(missing)").to_numpy(), return_inverse=True)
        for code, name in enumerate(names):
            of_value = codes == code
            num_samples, measured = _measure(metric, of_value, labels, offsets, candidate)
            if num_samples < MIN_SAMPLES or not np.isfinite(measured):
                continue
            found.append(
                Slice(
                    column=column,
                    value=str(name),
                    num_samples=num_samples,
                    candidate=measured,
                    champion=None if champion is None else _measure(metric, of_value, labels, offsets, champion)[1],
                )
            )
    return sorted(found, key=lambda entry: direction(metric) * entry.candidate)


def _measure(metric: str, of_value: np.ndarray, labels: Floats, offsets: IntArray, scores: Floats) -> tuple[int, float]:
    cutoff = cutoff_of(metric)
    if metric == "perplexity":
        return int(of_value.sum()), perplexity(labels[of_value], scores[of_value])
    if cutoff is None:
        return int(of_value.sum()), auc(labels[of_value], scores[of_value])
    per_query = ndcg(labels, scores, offsets, cutoff)[np.add.reduceat(of_value, offsets[:-1]) > 0]
    per_query = per_query[np.isfinite(per_query)]
    return len(per_query), float(per_query.mean()) if len(per_query) else float("nan")
