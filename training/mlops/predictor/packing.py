"""A checkpoint of the store as a folder that a model is opened from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlops.contract.refs import CheckpointRef, FeaturesRef
from mlops.features.fitted import check_version, read_manifest
from mlops.features.tokenise import check_tokens_version
from mlops.predictor.document import weights_file, write_document
from mlops.predictor.documents import DocumentsPredictor
from mlops.predictor.predictor import Predictor, open_predictor
from mlops.predictor.rows import RowsPredictor
from mlops.store import Store


def open_checkpoint(store: Store, checkpoint: CheckpointRef, scratch: Path) -> Predictor:
    """
    Open the model of a checkpoint, with the code that it was trained with, whatever the checkout holds now.

    :param scratch: folder for its files; they may go once it is open
    :raises DamagedObjectError: where a stored object is missing, or not the one that was written
    :raises BadConfigError: where its features or its code cannot be used here
    """
    folder = scratch / f"model-{checkpoint.digest()[:12]}"
    if not folder.exists():
        write_folder(store, checkpoint, folder)
    predictor, features = open_predictor(folder), checkpoint.ancestor(FeaturesRef)
    if isinstance(predictor, RowsPredictor):
        check_version(features, predictor.fitted)
    if isinstance(predictor, DocumentsPredictor):
        check_tokens_version(features, predictor.tokens)
    return predictor


def write_folder(store: Store, checkpoint: CheckpointRef, folder: Path) -> dict[str, Any]:
    """
    Write the folder that :func:`mlops.predictor.predictor.open_predictor` opens, and return its document. No code of
    the recipe is run.

    :raises DamagedObjectError: where a stored object is missing, or not the one that was written
    """
    features = checkpoint.ancestor(FeaturesRef)
    manifest = read_manifest(store, features)
    description = json.loads(store.read(checkpoint.artifacts["model"]))
    # Most often one recipe has both: its code is there once.
    code = {ref.kind: f"{ref.artifacts['code'].sha256[:12]}.zip" for ref in (checkpoint, features)}
    document = {
        "model": {**description, "path": description["model"], "code": code["checkpoint"]},
        "features": {
            "path": manifest["feature_set"],
            "code": code["features"],
            "state": json.loads(store.read(features.artifacts["state"])),
            "engine": manifest.get("engine", {}),
            "group_by": manifest.get("group_by", []),
        },
    }
    folder.mkdir()
    for ref in (checkpoint, features):
        (folder / code[ref.kind]).write_bytes(store.read(ref.artifacts["code"]))
    (folder / weights_file(description["learner"])).write_bytes(store.read(checkpoint.artifacts["weights"]))
    write_document(folder, document)
    return document
