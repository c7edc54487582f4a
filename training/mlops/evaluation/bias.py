"""The differences in how groups are treated: in what is predicted for them, and in how often that is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from mlops.evaluation.slice_metrics import MIN_SAMPLES, values_of
from mlops.metrics.predictions import Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupDifference:
    """
    Differences between those groups of a column that differ most; 0: all are treated alike. None if no two groups have
    enough rows; the champion's are None if there is no champion.
    """

    column: str
    num_groups: int
    demographic_parity: float | None
    """Difference of the share predicted positive, that is, more probable than not."""
    equalised_odds: float | None
    """Difference of the true or the false positive rate, whichever differs more (Hardt et al. 2016), among groups
    that have enough rows of the one label or the other."""
    unmeasured: Sequence[str]
    """Names of those of these two rates that ``equalised_odds`` leaves out."""
    champion_demographic_parity: float | None
    champion_equalised_odds: float | None

    def of(self, measure: str) -> float | None:
        return self.demographic_parity if measure == "demographic_parity" else self.equalised_odds


def group_differences(
    rows: pl.DataFrame, columns: Sequence[str], *, labels: Floats, candidate: Floats, champion: Floats | None
) -> list[GroupDifference]:
    """
    Measure how differently groups are treated, for each column.

    :param rows: raw rows in the order of ``labels``, of a binary objective; groups of few rows are left out
    :raises BadConfigError: where there is no such column, or its values are no groups
    """
    found = []
    for column in columns:
        names = values_of(rows, column, "fairness")
        _, counts = np.unique(names, return_counts=True)
        everybody = np.ones(len(labels), bool)
        rows_of = {"true positive rate": labels > 0, "false positive rate": labels <= 0}
        values: list[float | None] = []
        for scores in [candidate] if champion is None else [candidate, champion]:
            predicted = scores > 0
            odds = {rate: _spread(predicted, names, counted) for rate, counted in rows_of.items()}
            known = [spread for spread in odds.values() if spread is not None]
            values += [_spread(predicted, names, everybody), max(known, default=None)]
        found.append(
            GroupDifference(
                column=column,
                num_groups=int((counts >= MIN_SAMPLES).sum()),
                demographic_parity=values[0],
                equalised_odds=values[1],
                unmeasured=tuple(rate for rate, spread in odds.items() if spread is None),
                champion_demographic_parity=values[2] if champion is not None else None,
                champion_equalised_odds=values[3] if champion is not None else None,
            )
        )
    return found


def _spread(
    predicted: npt.NDArray[np.bool_], names: npt.NDArray[np.str_], counted: npt.NDArray[np.bool_]
) -> float | None:
    """
    Return the largest difference of the share predicted positive, among counted rows, between groups of enough of them.
    """
    from fairlearn.metrics import MetricFrame, selection_rate  # a second of imports, for those who ask for it

    _, codes, counts = np.unique(names[counted], return_inverse=True, return_counts=True)
    if (counts >= MIN_SAMPLES).sum() < 2:
        return None
    kept = (counts >= MIN_SAMPLES)[codes]
    chosen = predicted[counted][kept]
    rates = MetricFrame(metrics=selection_rate, y_true=chosen, y_pred=chosen, sensitive_features=names[counted][kept])
    return float(rates.difference())
