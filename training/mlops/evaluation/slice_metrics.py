"""The metric on parts of the hold-out, to find where a good average hides a bad corner."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from mlops.contract.step import BadConfigError
from mlops.data.shards.feature_table import offsets_of
from mlops.evaluation.bootstrap import FEWER_RESAMPLES, Estimate, estimate
from mlops.trainer.metrics import Floats, IntArray, weighted

MAX_VALUES: Final = 40
"""Most values of a column that counts as a group of rows; one with more is a key."""
MIN_SAMPLES: Final = 10
"""Fewest samples of a slice: a metric over fewer says nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    column: str
    value: str
    num_samples: int
    """Number of queries with at least one row of that value, or of rows."""
    estimate: Estimate | None
    """Estimate of the metric; None if it cannot be measured there, as AUC if all rows have the same label."""


def slice_columns(rows: pl.DataFrame) -> list[str]:
    """Return the text columns that sort the rows into a handful of groups."""
    text = [name for name, dtype in rows.schema.items() if dtype in (pl.String, pl.Categorical)]
    return [name for name in text if 2 <= rows[name].n_unique() <= MAX_VALUES]


def values_of(rows: pl.DataFrame, column: str, setting: str) -> npt.NDArray[Any]:
    """
    Return each row's value as text.

    :param setting: name of the setting of ``evaluate``, for the message
    :raises BadConfigError: where there is no such column, or its values are no groups
    """
    if column not in rows.columns:
        near = difflib.get_close_matches(column, rows.columns, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"its columns are {', '.join(rows.columns)}"
        raise BadConfigError(f"evaluate.{setting}: the snapshot has no column {column!r}; {hint}")
    dtype = rows.schema[column]
    if dtype.is_nested() or dtype == pl.Binary:
        raise BadConfigError(
            f"evaluate.{setting}: column {column!r} is of type {dtype}, whose values are no groups; make a column of "
            "text or numbers of it in ingest.transform"
        )
    if (count := rows[column].n_unique()) > MAX_VALUES:
        raise BadConfigError(
            f"evaluate.{setting}: column {column!r} has {count} values in the held-out rows, and at most {MAX_VALUES} "
            "are groups; make a column of fewer values in ingest.transform"
        )
    return rows[column].cast(pl.String).fill_null("(missing)").to_numpy()


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
    Measure the metric per value of each column, worst for the candidate first and those last that cannot be measured;
    slices of fewer than :data:`MIN_SAMPLES` are left out.

    :param rows: raw rows in the order of ``labels``
    :raises BadConfigError: where there is no such column, or its values are no groups
    """
    found = []
    models = [candidate] if champion is None else [candidate, champion]
    for column in columns:
        names, codes = np.unique(values_of(rows, column, "slices"), return_inverse=True)
        for code, name in enumerate(names):
            part = _Part.of(codes == code, offsets, labels, models)
            if part is None:
                continue
            measured = None
            if part.measurable(metric):
                measured = estimate(metric, part.labels, part.offsets, *part.scores, resamples=FEWER_RESAMPLES)
            found.append(Slice(column=column, value=str(name), num_samples=len(part.offsets) - 1, estimate=measured))
    return sorted(found, key=_goodness)


def _goodness(found: Slice) -> float:
    return found.estimate.direction * found.estimate.candidate.value if found.estimate else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """The samples that have a row in the slice, with all their rows: a query is ranked as a whole."""

    labels: Floats
    offsets: IntArray
    scores: Sequence[Floats]

    @classmethod
    def of(
        cls, rows: npt.NDArray[np.bool_], offsets: IntArray, labels: Floats, scores: Sequence[Floats]
    ) -> _Part | None:
        lengths = np.diff(offsets)
        chosen = np.add.reduceat(rows, offsets[:-1]) > 0
        kept = np.repeat(chosen, lengths)
        if chosen.sum() < MIN_SAMPLES:
            return None
        return cls(labels=labels[kept], offsets=offsets_of(lengths[chosen]), scores=[each[kept] for each in scores])

    def measurable(self, metric: str) -> bool:
        whole = np.ones((1, len(self.offsets) - 1))
        return all(np.isfinite(weighted(metric, self.labels, each, self.offsets)(whole)[0]) for each in self.scores)
