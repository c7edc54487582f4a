"""Serve a model that scores rows of a table with a feature set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import nn

from mlops.contract.step import BadDataError
from mlops.features.applied import FittedFeatures
from mlops.features.feature_set import FeatureSet
from mlops.features.release import check_engine
from mlops.metrics.predictions import num_not_finite
from mlops.objectives.objective import LoadedObjective
from mlops.objectives.scoring import predict_table

EXAMPLE_ROWS: Final = 5
"""Fewest rows of the example, which holds whole groups."""
_ROW: Final = "__row"


class ServedRows:
    """
    A model that scores the rows of requests.

    :param stored: the features' part of the document: ``engine``, ``state``
    :param described: the model's part: ``grouped``
    """

    def __init__(
        self,
        feature_set: FeatureSet,
        stored: Mapping[str, Any],
        module: nn.Module,
        described: Mapping[str, Any],
        objective: LoadedObjective,
    ) -> None:
        check_engine("the features of this model", stored["engine"])
        self._fitted = FittedFeatures(feature_set, stored["state"])
        self._module, self._grouped = module, bool(described["grouped"])
        self._objective = objective
        self.columns = self._fitted.columns

    def answer(self, rows: pl.DataFrame) -> dict[str, npt.NDArray[Any]]:
        """
        Score rows. Features of a group (``FeatureSet.group_by``, e.g. the flights of a route and day) follow from all
        its rows: a request holds whole groups, one or several, in any order. Other rows may be asked for one by one.

        :return: the columns of the objective: ``score``; with ``probability`` where it is binary (the score is its
            logit). Null for a row that the feature set leaves out, of a group below ``min_group_size``
        """
        table = self._fitted.apply(rows.with_row_index(_ROW), keys={_ROW: _ROW})
        assert table.keys is not None, "asked for"
        predicted = predict_table(
            self._objective.functions, self._module, table, torch.device("cpu"), grouped=self._grouped
        )
        places = table.keys[_ROW].to_numpy()
        if num_not_finite(predicted):
            at = int(np.argmin(np.isfinite(predicted.reshape(len(predicted), -1)).all(axis=1)))
            raise BadDataError(f"the model's score of row {places[at]} is {predicted[at]}, not a number")
        answers = {}
        scored = self._objective.predictions(table.labels, predicted, table.offsets)
        for name, values in self._objective.functions.answer(scored).items():
            answers[name] = np.full(rows.height, np.nan, np.result_type(values.dtype, np.float32))
            answers[name][places] = values
        return answers

    def example(self, held_out: pl.DataFrame) -> pl.DataFrame:
        """Return the first samples, in the columns of a request."""
        arranged, offsets = self._fitted.arranged(held_out)
        stop = next((stop for stop in offsets[1:].tolist() if stop >= EXAMPLE_ROWS), arranged.height)
        return arranged.select(pl.col(name).cast(dtype) for name, dtype in self.columns.items()).head(stop)
