"""A trained model that takes raw rows. Runs in a server that has what the model's folder holds, and no checkout."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from mlops_provider.step import BadConfigError, BadDataError
from training.code import load_bundled
from training.features.applied import FittedFeatures
from training.features.release import check_engine
from training.serving.request import rows_of
from training.tracking.model_folder import refusal
from training.trainer.checkpoint.weights import deserialise
from training.trainer.config import build_model
from training.trainer.objectives import score

DOCUMENT: Final = "serving.json"
"""Beside ``weights.pt`` and the recipes' code: what is built of them."""
_ROW: Final = "__row"


class ServedModel:
    """
    What ``mlflow.pyfunc.load_model`` gives, and ``mlflow models serve`` asks.

    :param folder: with :data:`DOCUMENT` and the files that it names
    :raises BadConfigError: where this process would make other features of a row than the training did
    """

    def __init__(self, folder: Path) -> None:
        document = json.loads((folder / DOCUMENT).read_text())
        check_engine("the features of this model", document["engine"])
        # The recipe may import more of itself later: its files stay for as long as the model.
        self._recipes = TemporaryDirectory(prefix="recipe-")

        def load(part: dict[str, str]) -> Any:
            return load_bundled((folder / part["code"]).read_bytes(), part["path"], Path(self._recipes.name))

        self.fitted = FittedFeatures(load(document["features"]), document["features"]["state"])
        described = document["model"]
        self.module = build_model(
            load(described), described["path"], described["num_features"], described["model_args"]
        )
        self.module.load_state_dict(deserialise((folder / "weights.pt").read_bytes(), torch.device("cpu")))
        self.objective: str = described["objective"]
        self.grouped: bool = described["grouped"]

    def predict(self, model_input: pd.DataFrame, params: object = None) -> pd.DataFrame:
        """
        Score raw rows.

        Features of a group (``FeatureSet.group_by``, e.g. the flights of a route and day) follow from all its rows: a
        request holds whole groups, one or several, in any order. Other rows may be asked for one by one.

        :param model_input: the raw columns, missing values allowed; others are ignored
        :return: for each row, in the request's order: ``score``, with ``probability`` where the objective is binary
            (the score is its logit). Null for a row that the feature set leaves out, of a group below
            ``min_group_size``
        :raises MlflowException: with what is wrong; a server answers 400
        """
        try:
            scores = self.scores(model_input)
        except (BadDataError, BadConfigError) as error:
            raise refusal(str(error)) from error
        answer = pd.DataFrame({"score": scores}, index=model_input.index)
        if self.objective == "binary":
            answer["probability"] = torch.sigmoid(torch.from_numpy(scores)).numpy()
        # In JSON there is null and no NaN.
        return answer.astype(object).where(answer.notna(), None) if answer.isna().any(axis=None) else answer

    def scores(self, request: pd.DataFrame) -> npt.NDArray[np.float32]:
        """``[N]`` in the request's order, NaN for rows that are left out; for the rest see :meth:`predict`."""
        rows = rows_of(request, self.fitted.columns).with_row_index(_ROW)
        table = self.fitted.apply(rows, keys={_ROW: _ROW})
        assert table.keys is not None, "asked for"
        scored = score(self.module, table, torch.device("cpu"), grouped=self.grouped)
        places = table.keys[_ROW].to_numpy()
        if not (finite := np.isfinite(scored)).all():
            raise BadDataError(f"the model's score of row {places[~finite][0]} is {scored[~finite][0]}, not a number")
        scores = np.full(rows.height, np.nan, np.float32)
        scores[places] = scored
        return scores


def _load_pyfunc(path: str) -> ServedModel:
    """Called by MLflow, for ``loader_module`` in the folder's MLmodel names this module."""
    return ServedModel(Path(path))
