"""A checkpoint as a folder that MLflow serves."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from mlops.contract.extensions import is_of_recipe
from mlops.contract.learners import LEARNERS, TORCH_LEARNER
from mlops.contract.objectives import OBJECTIVES
from mlops.contract.refs import CheckpointRef, DatasetRef, FeaturesRef, digest_of
from mlops.contract.step import BadConfigError
from mlops.features.fitted import held_out, read_manifest
from mlops.predictor.packing import write_folder
from mlops.registry.semantic_version import Contract
from mlops.serving import answering, model, scoring
from mlops.serving.library import closure, imports_of, packed, requirements
from mlops.serving.model import ServedModel
from mlops.store import Store
from mlops.tracking.model_folder import SignatureColumn, write_model_folder


def contract(store: Store, checkpoint: CheckpointRef) -> Contract:
    features = checkpoint.ancestor(FeaturesRef)
    state = json.loads(store.read(features.artifacts["state"]))
    described = json.loads(store.read(checkpoint.artifacts["model"]))
    codes = [checkpoint.artifacts["code"].sha256, features.artifacts["code"].sha256]
    return Contract(
        signature=digest_of([state["columns"], described["columns"]]),
        raw_schema=checkpoint.ancestor(DatasetRef).schema_hash,
        architecture=digest_of([described, read_manifest(store, features)["feature_set"], codes]),
    )


def served_example(store: Store, checkpoint: CheckpointRef, scratch: Path) -> bytes:
    """
    Ask the model for some of the held-out rows, as a server will have it. This runs code of the recipe.

    :return: these rows, in Arrow's IPC format, for :func:`package`
    :raises BadConfigError: where a server could not load the model, or the model cannot score these rows
    """
    data = scratch / "asked"
    write_folder(store, checkpoint, data)
    buffer = io.BytesIO()
    _asked(data, held_out(store, checkpoint.ancestor(FeaturesRef)), checkpoint).write_ipc(buffer)
    return buffer.getvalue()


def package(store: Store, checkpoint: CheckpointRef, example: bytes, scratch: Path) -> Path:
    """
    Write the folder.

    :param example: rows that :func:`served_example` returned
    :return: a folder below ``scratch``; equal checkpoints and examples give equal bytes
    :raises BadConfigError: where a server would lack something that the recipe imports
    """
    data = scratch / "model"
    document = write_folder(store, checkpoint, data)
    rows = pl.read_ipc(io.BytesIO(example))
    recipes = {data / document[part]["code"] for part in ("model", "features")}
    modules, packages = closure(
        {model.__name__, scoring.__name__, answering.__name__, *_imported(recipes), *_of_extensions(document["model"])}
    )
    folder = scratch / "served"
    write_model_folder(
        folder,
        loader_module=model.__name__,
        data=data,
        library=packed(modules),
        requirements=requirements(packages),
        inputs=[SignatureColumn(name=name, type=_type(dtype)) for name, dtype in rows.schema.items()],
        outputs=[SignatureColumn(name=name, type=type_) for name, type_ in document["model"]["columns"].items()],
        # Dates as such: as instants they would be written with a time of day, which a request must not have.
        example=rows.to_pandas(date_as_object=True),
        metadata={
            "mlops.checkpoint_digest": checkpoint.digest(),
            "mlops.columns": {name: str(dtype) for name, dtype in rows.schema.items()},
        },
    )
    return folder


def _of_extensions(described: Mapping[str, Any]) -> set[str]:
    """Return the modules of objective and learner, and those that it uses; none for what is in the recipe's code."""
    found = set[str]()
    for point in (OBJECTIVES, LEARNERS):
        name = described[point.kind]
        path = point.import_path(name)
        if name in point.builtin:
            path = str(point.load(name).implementation)
        if not is_of_recipe(path):
            found.add(path.partition(":")[0])
    if not is_of_recipe(learner := described["learner"]):
        named = [str(described["learner_settings"][each]) for each in LEARNERS.load(learner).code_settings]
        found |= {path.partition(":")[0] for path in named if not is_of_recipe(path)}
    # How torch trains is nothing that a server needs.
    return found - {str(TORCH_LEARNER.implementation).partition(":")[0]}


def _imported(recipes: Iterable[Path]) -> set[str]:
    """Return the modules that recipes import from elsewhere."""
    found: set[str] = set()
    for recipe in recipes:
        with zipfile.ZipFile(recipe) as archive:
            for name in archive.namelist():
                if name.endswith(".py"):
                    found |= imports_of(archive.read(name).decode(), lazily=True)
    return found


def _type(dtype: pl.DataType) -> str:
    """
    Return MLflow's type for a raw column that may have missing values. It has none for integers and booleans, of which
    it would refuse the column or make null a False, nor for bytes, of which it takes no null, nor for dates and times,
    which it would guess: 5 as nanoseconds, 03/04/2013 as the month first. Those are checked by the model alone.
    """
    if dtype.is_float():
        return "double"
    return "string" if dtype in (pl.String, pl.Categorical, pl.Enum) else "any"


def _asked(data: Path, rows: pl.DataFrame, checkpoint: CheckpointRef) -> pl.DataFrame:
    """Return some held-out rows that the model has scored."""
    try:
        model = ServedModel(data)
        example = model.predictor.example(rows)
        model.predict(example.to_pandas())
    except Exception as error:  # the recipe's code may raise anything
        raise BadConfigError(
            f"the model of {checkpoint.place} cannot be served, and must not be registered: asked for held-out rows "
            f"it fails with {type(error).__name__}: {error}"
        ) from error
    return example
