"""A trained model that takes raw rows. Runs in a server that has what the model's folder holds, and no checkout."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pandas as pd
import torch

from mlops.code import load_bundled
from mlops.contract.refs import canonical_json, digest_of
from mlops.contract.step import BadConfigError, BadDataError
from mlops.objectives.objective import load_objective
from mlops.serving.documents import ServedDocuments
from mlops.serving.request import rows_of
from mlops.serving.rows import ServedRows
from mlops.tracking.model_folder import refusal
from mlops.trainer.checkpoint.weights import deserialise
from mlops.trainer.model import build_model

DOCUMENT: Final = "serving.json"
"""Name of the file beside ``weights.pt`` and the recipes' code that says what is built from them."""


class ServedModel:
    """
    The model that ``mlflow.pyfunc.load_model`` returns and ``mlflow models serve`` calls.

    :param folder: folder with :data:`DOCUMENT` and the files that it names
    :raises BadDataError: if one of them is missing, or is not what was packed; none of its code has run then
    :raises BadConfigError: if this process would make other features from a row than the training did
    """

    def __init__(self, folder: Path) -> None:
        document = read_document(folder)
        # The recipe may import more of itself later: its files stay for as long as the model.
        self._recipes = TemporaryDirectory(prefix="recipe-")

        def load(part: dict[str, str]) -> Any:
            return load_bundled((folder / part["code"]).read_bytes(), part["path"], Path(self._recipes.name))

        definition, described = load(document["features"]), document["model"]
        objective = load_objective(
            described["objective"],
            described["objective_settings"],
            lambda import_path: load({"code": described["code"], "path": import_path}),
        )
        module = build_model(
            load(described),
            described["path"],
            described["num_features"],
            described["model_args"],
            vocab_size=described["vocab_size"],
            num_outputs=described["num_outputs"],
        )
        module.load_state_dict(deserialise((folder / "weights.pt").read_bytes(), torch.device("cpu")))
        served = ServedRows if described["vocab_size"] is None else ServedDocuments
        self.served = served(definition, document["features"], module, described, objective)

    def predict(self, model_input: pd.DataFrame, params: object = None) -> pd.DataFrame:
        """
        Score raw rows: a row of the answer for each, in the request's order; see :meth:`ServedRows.answer` and
        :meth:`ServedDocuments.answer`.

        :param model_input: the raw columns, missing values allowed; others are ignored
        :raises MlflowException: with what is wrong; a server answers 400
        """
        try:
            answers = self.served.answer(rows_of(model_input, self.served.columns))
        except (BadDataError, BadConfigError) as error:
            raise refusal(str(error)) from error
        answer = pd.DataFrame(answers, index=model_input.index)
        # In JSON there is null and no NaN.
        return answer.astype(object).where(answer.notna(), None) if answer.isna().any(axis=None) else answer


def write_document(folder: Path, document: Mapping[str, Any]) -> None:
    """
    Write :data:`DOCUMENT`, with the digests of the files that are in the folder, and its own.

    Whoever may write the folder can replace all of it: this finds damage, and not malice.
    """
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    whole = {**document, "files": files}
    (folder / DOCUMENT).write_bytes(canonical_json({**whole, "sha256": digest_of(whole)}))


def read_document(folder: Path) -> dict[str, Any]:
    """
    Read :data:`DOCUMENT`, and check the files that it names.

    :raises BadDataError: naming the file that is missing, or is not what was packed
    """
    path = folder / DOCUMENT
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        if document.pop("sha256") != digest_of(document):
            raise ValueError("its SHA-256 is not the one that it names")
        for name, sha256 in document["files"].items():
            path = folder / name
            if (found := hashlib.sha256(path.read_bytes()).hexdigest()) != sha256:
                raise ValueError(f"its SHA-256 is {found}, and was {sha256}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadDataError(
            f"{path} is not what was registered ({error!r}): fetch the model from MLflow again; where it is damaged "
            "there, serve another version (mlops models rollback) and restore MLflow's artifacts from a backup"
        ) from error
    return document


def _load_pyfunc(path: str) -> ServedModel:
    """
    Load the model for MLflow, which calls this because ``loader_module`` in the folder's MLmodel names this module.
    """
    return ServedModel(Path(path))
