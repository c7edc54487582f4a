"""A model that scores the rows of a table. A sample is a query if rows are grouped, else a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from mlops.contract.step import BadDataError
from mlops.data.shards.feature_table import FeatureTable
from mlops.features.applied import FittedFeatures
from mlops.features.feature_set import FeatureSet
from mlops.features.release import check_engine
from mlops.metrics.predictions import Floats, IntArray, num_not_finite
from mlops.objectives.objective import LoadedObjective, check_shape, no_predictions
from mlops.predictor.document import ModelDescription
from mlops.predictor.scored import Scored
from mlops.random_states import drawn_alike

EXAMPLE_ROWS: Final = 5
"""Fewest rows of the example, which holds whole groups."""
_ROW: Final = "__row"


class RowsPredictor:
    """
    Implements :class:`mlops.predictor.predictor.Predictor`.

    :param definition: the feature set
    :param stored: the features' part of the document: ``engine``, ``state``
    :param predict: what was learnt, from features to predictions
    :param importance: as :meth:`mlops.FittedModel.importance`
    :param recipes: folder of the recipes' files, kept for as long as the model
    :raises BadConfigError: if this process would make other features from a row than the training did
    """

    def __init__(
        self,
        *,
        definition: FeatureSet,
        stored: Mapping[str, Any],
        description: ModelDescription,
        objective: LoadedObjective,
        predict: Callable[[FeatureTable], Floats],
        importance: Callable[[FeatureTable], Mapping[str, float]],
        num_bytes: int,
        recipes: TemporaryDirectory[str],
    ) -> None:
        check_engine("the features of this model", stored["engine"])
        self.fitted = FittedFeatures(definition, stored["state"])
        self.description, self.objective, self.num_bytes = description, objective, num_bytes
        self._scores, self._importance, self._recipes = predict, importance, recipes

    def importance(self, rows: pl.DataFrame) -> Mapping[str, float]:
        return self._importance(self.fitted.apply(rows))

    @property
    def columns(self) -> pl.Schema:
        return self.fitted.columns

    @property
    def inputs(self) -> Sequence[str]:
        features = self.fitted.feature_set
        return [name for name in self.columns if name not in {*features.group_by, *features.order_by}]

    @property
    def unknown(self) -> Sequence[str]:
        return [*self.fitted.feature_set.label_names, *self.fitted.feature_set.outcomes]

    def score(self, rows: pl.DataFrame) -> Scored:
        table = self.fitted.apply(rows.with_row_index(_ROW), keys={_ROW: _ROW})
        assert table.keys is not None, "asked for"
        with drawn_alike():  # some models draw in evaluation mode too
            predicted = self._predict(table)
        return Scored(
            rows=table.keys[_ROW].to_numpy().astype(np.int64),
            predictions=self.objective.predictions(table.labels, predicted, table.offsets),
        )

    def serve(self, request: Sequence[Mapping[str, Any]]) -> Floats:
        return self._predict(self.fitted.serve(request))

    def samples(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, IntArray]:
        return self.fitted.arranged(rows)

    def answer(self, rows: pl.DataFrame) -> dict[str, npt.NDArray[Any]]:
        """
        Score rows. Features of a group (``FeatureSet.group_by``, e.g. the flights of a route and day) follow from all
        its rows: a request holds whole groups, one or several, in any order. Other rows may be asked for one by one.

        :return: the columns of the objective, such as ``score``; with ``probability`` where it is binary (the score is
            its logit). Null for a row that the feature set leaves out, of a group below ``min_group_size``
        """
        table = self.fitted.apply(rows.with_row_index(_ROW), keys={_ROW: _ROW}, request=True)
        assert table.keys is not None, "asked for"
        predicted, places = self._predict(table), table.keys[_ROW].to_numpy()
        if num_not_finite(predicted):
            at = int(np.argmin(np.isfinite(predicted.reshape(len(predicted), -1)).all(axis=1)))
            raise BadDataError(f"the model's score of row {places[at]} is {predicted[at]}, not a number")
        answers = {}
        scored = self.objective.predictions(table.labels, predicted, table.offsets)
        for name, values in self.objective.functions.answer(scored).items():
            if np.issubdtype(values.dtype, np.number):
                answers[name] = np.full(rows.height, np.nan, np.result_type(values.dtype, np.float32))
            else:
                answers[name] = np.full(rows.height, None, object)
            answers[name][places] = values
        return answers

    def example(self, held_out: pl.DataFrame) -> pl.DataFrame:
        """Return the first samples, in the columns of a request."""
        arranged, offsets = self.fitted.arranged(held_out)
        stop = next((stop for stop in offsets[1:].tolist() if stop >= EXAMPLE_ROWS), arranged.height)
        return arranged.select(self.columns.names()).head(stop)

    def _predict(self, table: FeatureTable) -> Floats:
        if table.num_features != self.description.num_features:
            raise BadDataError(
                f"the model takes {self.description.num_features} features, its feature set gives "
                f"{table.num_features}; train it again"
            )
        if not table.num_rows:
            # As of groups that are all too small. Not every learner takes an empty table.
            return no_predictions(self.objective.functions)
        if self.fitted.feature_set.grouped or table.num_rows < 2:
            return self._scored(table)
        # Linear algebra may give a row other last bits at another place of a batch: rows that are alike have one
        # place, and all have theirs whatever order they come in.
        bits = np.ascontiguousarray(table.features).view(np.dtype((np.void, 4 * max(table.num_features, 1))))
        _, first, places = np.unique(bits.ravel(), return_index=True, return_inverse=True)
        return self._scored(table.take(first))[places]

    def _scored(self, table: FeatureTable) -> Floats:
        predicted = self._scores(table)
        check_shape(self.objective, predicted, table.num_rows, f"the model of learner {self.description.learner!r}")
        return predicted
