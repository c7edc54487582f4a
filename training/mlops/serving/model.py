"""A trained model that takes raw rows. Runs in a server that has what the model's folder holds, and no checkout."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from mlops.contract.step import BadConfigError, BadDataError
from mlops.predictor.predictor import open_predictor
from mlops.serving.request import rows_of
from mlops.tracking.model_folder import refusal


class ServedModel:
    """
    The model that ``mlflow.pyfunc.load_model`` returns and ``mlflow models serve`` calls.

    :param folder: folder with :data:`DOCUMENT` and the files that it names
    :raises BadDataError: if one of them is missing, or is not what was packed; none of its code has run then
    :raises BadConfigError: if this process would make other features from a row than the training did
    """

    def __init__(self, folder: Path) -> None:
        self.predictor = open_predictor(folder)

    def predict(self, model_input: pd.DataFrame, params: object = None) -> pd.DataFrame:
        """
        Score raw rows: a row of the answer for each, in the request's order; see :meth:`Predictor.answer`.

        :param model_input: the raw columns, missing values allowed; others are ignored
        :raises MlflowException: with what is wrong; a server answers 400
        """
        try:
            answers = self.predictor.answer(rows_of(model_input, self.predictor.columns))
        except (BadDataError, BadConfigError) as error:
            raise refusal(str(error)) from error
        answer = pd.DataFrame(answers, index=model_input.index)
        # In JSON there is null and no NaN.
        return answer.astype(object).where(answer.notna(), None) if answer.isna().any(axis=None) else answer


def _load_pyfunc(path: str) -> ServedModel:
    """
    Load the model for MLflow, which calls this because ``loader_module`` in the folder's MLmodel names this module.
    """
    return ServedModel(Path(path))
