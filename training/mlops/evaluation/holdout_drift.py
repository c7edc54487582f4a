"""The change of the data since the champion: today's held-out rows compared with those that it was judged on itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.spatial.distance import jensenshannon

NUM_BINS: Final = 10
MAX_TEXTS: Final = 50
"""Most values of a text column that are told apart; the others count as one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnDrift:
    column: str
    distance: float
    """Jensen-Shannon divergence to base 2: 0 for equal distributions, 1 for those with nothing in common."""
    before: str
    now: str
    """Mean of a number, or most frequent value of a text, and how often it is missing."""


def column_drifts(before: pl.DataFrame, now: pl.DataFrame) -> list[ColumnDrift]:
    """
    Measure the drift of the numbers, texts and truth values that both tables have, the most changed first.

    Numbers are counted in bins of the deciles that they had before, rows without a value in one of their own; so are
    the lengths of texts that hardly ever come twice, documents or keys. Small samples differ by chance: the result is
    for people to read, and decides nothing. The validate step's drift check decides.
    """
    found = []
    for name in before.columns:
        if name not in now.columns:
            continue
        column, first, second = name, before[name], now[name]
        if _is_text(first) and _is_text(second) and (_tells_apart(first) or _tells_apart(second)):
            column = f"length of {name}"
            first, second = (values.cast(pl.String).str.len_chars() for values in (first, second))
        if first.dtype.is_numeric() and second.dtype.is_numeric():
            counts = _numbers(first), _numbers(second, first)
        elif first.dtype == second.dtype and (_is_text(first) or first.dtype == pl.Boolean):
            counts = _texts(first, second)
        else:
            continue
        distance = float(jensenshannon(*counts, base=2) ** 2)
        found.append(ColumnDrift(column=column, distance=distance, before=_told(first), now=_told(second)))
    return sorted(found, key=lambda each: (-each.distance, each.column))


def _is_text(values: pl.Series) -> bool:
    return values.dtype in (pl.String, pl.Categorical)


def _tells_apart(values: pl.Series) -> bool:
    """Return True if a text identifies its row, and not a kind of row."""
    known = values.drop_nulls()
    return known.n_unique() > max(len(known) / 2, NUM_BINS)


def _numbers(values: pl.Series, reference: pl.Series | None = None) -> npt.NDArray[np.float64]:
    """
    Count numbers in bins of deciles, and missing ones in a bin of their own.

    :param reference: values whose deciles are the edges; None for the counted values' own
    """
    marks = _known(values if reference is None else reference)
    edges = np.unique(np.quantile(marks, np.linspace(0, 1, NUM_BINS + 1)[1:-1])) if len(marks) else np.empty(0)
    known = _known(values)
    counts = np.bincount(np.searchsorted(edges, known), minlength=NUM_BINS)
    return np.append(counts, len(values) - len(known)).astype(np.float64)


def _known(values: pl.Series) -> npt.NDArray[np.float64]:
    numbers = values.cast(pl.Float64).to_numpy()
    known: npt.NDArray[np.float64] = numbers[np.isfinite(numbers)]
    return known


def _texts(before: pl.Series, now: pl.Series) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    # A column may be called count, as the counts are.
    before, now = (values.cast(pl.String).alias("text") for values in (before, now))
    told = before.value_counts(sort=True).head(MAX_TEXTS)["text"].to_list()
    counts = []
    for values in (before, now):
        of_value = dict(values.value_counts().iter_rows())
        parts = [of_value.pop(name, 0) for name in told]
        counts.append(np.array([*parts, sum(of_value.values())], dtype=np.float64))
    return counts[0], counts[1]


def _told(values: pl.Series) -> str:
    known = values.drop_nulls()
    if not len(known):
        return "none"
    number = values.dtype.is_numeric()
    text = f"{float(_known(known).mean()):.4g}" if number else str(known.cast(pl.String).mode().sort()[0])
    missing = values.null_count() / len(values)
    return f"{text} ({missing:.1%} missing)" if missing else text
