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
from mlops.trainer.objectives import score

EXAMPLE_ROWS: Final = 5
"""Fewest rows of the example, which holds whole groups."""
_ROW: Final = "__row"


class ServedRows:
    """
    A model that scores the rows of requests.

    :param stored: the features' part of the document: ``engine``, ``state``
    :param described: the model's part: ``objective``, ``grouped``
    """

    def __init__(
        self, feature_set: FeatureSet, stored: Mapping[str, Any], module: nn.Module, described: Mapping[str, Any]
    ) -> None:
        check_engine("the features of this model", stored["engine"])
        self._fitted = FittedFeatures(feature_set, stored["state"])
        self._module, self._described = module, described
        self.columns = self._fitted.columns

    def answer(self, rows: pl.DataFrame) -> dict[str, npt.NDArray[np.float32]]:
        """
        Score rows. Features of a group (``FeatureSet.group_by``, e.g. the flights of a route and day) follow from all
        its rows: a request holds whole groups, one or several, in any order. Other rows may be asked for one by one.

        :return: ``score``, with ``probability`` where the objective is binary (the score is its logit). Null for a row
            that the feature set leaves out, of a group below ``min_group_size``
        """
        table = self._fitted.apply(rows.with_row_index(_ROW), keys={_ROW: _ROW})
        assert table.keys is not None, "asked for"
        scored = score(self._module, table, torch.device("cpu"), grouped=self._described["grouped"])
        places = table.keys[_ROW].to_numpy()
        if not (finite := np.isfinite(scored)).all():
            raise BadDataError(f"the model's score of row {places[~finite][0]} is {scored[~finite][0]}, not a number")
        scores = np.full(rows.height, np.nan, np.float32)
        scores[places] = scored
        if self._described["objective"] != "binary":
            return {"score": scores}
        return {"score": scores, "probability": torch.sigmoid(torch.from_numpy(scores)).numpy()}

    def example(self, held_out: pl.DataFrame) -> pl.DataFrame:
        """Return the first samples, in the columns of a request."""
        arranged, offsets = self._fitted.arranged(held_out)
        stop = next((stop for stop in offsets[1:].tolist() if stop >= EXAMPLE_ROWS), arranged.height)
        return arranged.select(pl.col(name).cast(dtype) for name, dtype in self.columns.items()).head(stop)
