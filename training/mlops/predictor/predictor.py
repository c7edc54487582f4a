"""Open a trained model. Also runs in a server that has what the model's folder holds, and no checkout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

import numpy.typing as npt
import polars as pl
import torch

from mlops.code import load_bundled
from mlops.contract.learners import TORCH
from mlops.data.shards.feature_table import FeatureTable
from mlops.learners.learner import load_learner
from mlops.metrics.predictions import Floats, IntArray
from mlops.objectives.objective import LoadedObjective, load_objective
from mlops.objectives.scoring import predict_table
from mlops.predictor.document import ModelDescription, read_document, weights_file
from mlops.predictor.documents import DocumentsPredictor
from mlops.predictor.rows import RowsPredictor
from mlops.predictor.scored import Scored
from mlops.trainer.checkpoint.weights import deserialise
from mlops.trainer.model import build_model

CPU: Final = torch.device("cpu")


class Predictor(Protocol):
    """
    A trained model with its own features, code and weights: the one way to score rows, in evaluation, in a server and
    where a model is made again.
    """

    @property
    def description(self) -> ModelDescription: ...

    @property
    def objective(self) -> LoadedObjective: ...

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that a server needs: weights, fitted state, and the code of both."""

    def importance(self, rows: pl.DataFrame) -> Mapping[str, float]:
        """Return how much each feature contributes, by its name; empty where the learner does not say."""

    @property
    def columns(self) -> pl.Schema:
        """Raw columns that a request has, with their types."""

    @property
    def inputs(self) -> Sequence[str]:
        """Raw columns that features are made of: not those that only group rows or put them in an order."""

    @property
    def unknown(self) -> Sequence[str]:
        """Raw columns that nobody knows when the model is asked: the label, and outcomes."""

    def score(self, rows: pl.DataFrame) -> Scored:
        """
        Score rows.

        :param rows: raw rows, as they are in a snapshot
        :raises BadDataError: if the model's features cannot be made from these rows
        """

    def serve(self, request: Sequence[Mapping[str, Any]]) -> Floats:
        """
        Return the predictions of a request of a few rows.

        :raises BadDataError: if the model's features cannot be made from it
        """

    def samples(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, IntArray]:
        """Return the raw rows that have features, sample by sample; and ``[S + 1]``, where each sample begins."""

    def answer(self, rows: pl.DataFrame) -> Mapping[str, npt.NDArray[Any]]:
        """
        Return the columns of a served answer, a value for each row of a request, in its order.

        :raises BadDataError: if the model's features cannot be made from these rows, or a score is not finite
        """

    def example(self, held_out: pl.DataFrame) -> pl.DataFrame:
        """Return a few rows that make a good request, in the columns of one."""


def open_predictor(folder: Path) -> Predictor:
    """
    Open the model of a folder that :func:`mlops.predictor.packing.write_folder` has written.

    :raises BadDataError: if a file is missing, or is not what was packed; none of its code has run then
    :raises BadConfigError: if this process would make other features from a row than the training did
    """
    document = read_document(folder)
    # The recipe may import more of itself later: its files stay for as long as the model.
    recipes = TemporaryDirectory(prefix="recipe-")

    def load(part: Mapping[str, str]) -> Any:
        return load_bundled((folder / part["code"]).read_bytes(), part["path"], Path(recipes.name))

    features, described = document["features"], document["model"]
    names = [field.name for field in fields(ModelDescription)]
    description = ModelDescription(**{name: described[name] for name in names})

    def own(import_path: str) -> object:
        return load({"code": described["code"], "path": import_path})

    objective = load_objective(description.objective, description.objective_settings, own)
    weights = (folder / weights_file(description.learner)).read_bytes()
    common = {
        "definition": load(features),
        "stored": features,
        "description": description,
        "objective": objective,
        "num_bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "recipes": recipes,
    }
    if description.learner != TORCH:
        learner = load_learner(description.learner, description.learner_settings, own)
        fitted = learner.load(weights, objective)
        return RowsPredictor(**common, predict=fitted.predict, importance=fitted.importance)
    assert description.model is not None, "of learner: torch"
    module = build_model(
        own(description.model),
        description.model,
        description.num_features,
        description.model_args,
        vocab_size=description.vocab_size,
        num_outputs=description.num_outputs,
    )
    module.load_state_dict(deserialise(weights, CPU))
    # And it stays so: a server asks it from several threads.
    module.eval()
    if description.vocab_size is not None:
        return DocumentsPredictor(**common, module=module)

    def predict(table: FeatureTable) -> Floats:
        return predict_table(objective.functions, module, table, CPU, grouped=description.grouped)

    return RowsPredictor(**common, predict=predict, importance=lambda table: {})
