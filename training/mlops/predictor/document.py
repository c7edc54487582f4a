"""The folder that a model is opened from: weights, the recipes' code, and a document that says how they go together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mlops.contract.learners import TORCH
from mlops.contract.refs import canonical_json, digest_of
from mlops.contract.step import BadDataError

DOCUMENT: Final = "serving.json"
"""Name of the file beside the weights and the recipes' code that says what is built from them."""


def weights_file(learner: str) -> str:
    """Return the name of the file with what was learnt."""
    return "weights.pt" if learner == TORCH else "weights.bin"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDescription:
    """The ``model`` artifact of a checkpoint, which says how to build the model that the weights belong to."""

    learner: str
    learner_settings: dict[str, object]
    model: str | None
    """Import path of what builds the model; None where the learner is not torch."""
    model_args: dict[str, object]
    num_features: int
    """Number of columns of the input; for tokens, their number in a sequence."""
    vocab_size: int | None = None
    """Number of distinct tokens; None if the inputs are not tokens."""
    num_outputs: int = 1
    """Numbers that it returns for a row."""
    objective: str
    objective_settings: dict[str, object]
    columns: dict[str, str]
    """Columns of a served answer, with MLflow's types."""
    metric: str
    metric_title: str
    """Name of the metric for people."""
    loss: str | None
    grouped: bool


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
