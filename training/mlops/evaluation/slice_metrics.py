"""The metric on parts of the hold-out, to find where a good average hides a bad corner."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from mlops.contract.step import BadConfigError, BadDataError
from mlops.evaluation.bootstrap import FEWER_RESAMPLES, Estimate, estimate
from mlops.metrics.metric import Metric
from mlops.metrics.predictions import Predictions

logger = logging.getLogger(__name__)

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
    """Estimate of the metric; None if it cannot be measured there, as AUC if all rows have the same label. The log says
    why."""


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
    metric: Metric,
    rows: pl.DataFrame,
    columns: Sequence[str],
    candidate: Predictions,
    champion: Predictions | None,
) -> list[Slice]:
    """
    Measure the metric per value of each column, worst for the candidate first and those last that cannot be measured;
    slices of fewer than :data:`MIN_SAMPLES` are left out.

    :param rows: raw rows in the order of the predictions
    :raises BadConfigError: where there is no such column, or its values are no groups
    """
    found = []
    models = [candidate] if champion is None else [candidate, champion]
    for column in columns:
        names, codes = np.unique(values_of(rows, column, "slices"), return_inverse=True)
        for code, name in enumerate(names):
            # A query is ranked as a whole: with a row in the slice, all its rows are.
            samples = np.flatnonzero(np.add.reduceat(codes == code, candidate.offsets[:-1]) > 0)
            if len(samples) < MIN_SAMPLES:
                continue
            parts = [each.take(samples) for each in models]
            try:
                measured = estimate(metric, *parts, resamples=FEWER_RESAMPLES)
            except (BadDataError, BadConfigError) as error:
                # As where all rows of the slice are of one class, for which somebody's metric may raise anything: it
                # has measured the whole.
                logger.warning("%s=%s cannot be measured: %s", column, name, error)
                measured = None
            found.append(Slice(column=column, value=str(name), num_samples=len(samples), estimate=measured))
    return sorted(found, key=_goodness)


def _goodness(found: Slice) -> float:
    return found.estimate.direction * found.estimate.candidate.value if found.estimate else math.inf
