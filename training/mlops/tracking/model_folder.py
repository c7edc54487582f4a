"""A folder that MLflow loads as a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.exceptions import MlflowException

_CREATED: Final = "1980-01-01 00:00:00"
LIBRARY: Final = "library.zip"


@dataclass(frozen=True, kw_only=True, slots=True)
class SignatureColumn:
    """A column of a model's input or output."""

    name: str
    type: str
    """
    MLflow's type: ``double``, ``float``, ``long``, ``string``, ``datetime``, ``binary``; ``any`` where its own type
    would refuse missing values, or guess what a value means.
    """


def write_model_folder(
    folder: Path,
    *,
    loader_module: str,
    data: Path,
    library: bytes,
    requirements: Sequence[str],
    inputs: Sequence[SignatureColumn],
    outputs: Sequence[SignatureColumn],
    example: pd.DataFrame,
    metadata: Mapping[str, Any],
) -> None:
    """
    Write the folder of a model. Equal arguments give equal bytes.

    :param folder: folder to make; must not exist yet
    :param loader_module: module of the library, with a function ``_load_pyfunc``, which gets the path of ``data``
    :param library: zip of the modules that the loader needs
    """
    from mlflow.models import Model, ModelSignature
    from mlflow.pyfunc import CODE, FLAVOR_NAME, save_model
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import AnyType

    def schema(columns: Sequence[SignatureColumn]) -> Schema:
        return Schema([ColSpec(AnyType() if each.type == "any" else each.type, each.name) for each in columns])

    model = Model(model_uuid=None, utc_time_created=_CREATED)
    save_model(
        folder,
        loader_module=loader_module,
        data_path=data,
        mlflow_model=model,
        signature=ModelSignature(schema(inputs), schema(outputs)),
        input_example=example,
        pip_requirements=list(requirements),
        metadata=dict(metadata),
    )
    # Python imports out of a zip, which is one file to store where the modules are dozens.
    (folder / LIBRARY).write_bytes(library)
    model.flavors[FLAVOR_NAME][CODE] = LIBRARY
    model.save(folder / "MLmodel")


def data_of(folder: Path) -> Path:
    """Return the folder within a model's folder that its loader gets, as the file ``MLmodel`` names it."""
    from mlflow.models import Model
    from mlflow.pyfunc import DATA, FLAVOR_NAME

    return folder / str(Model.load(str(folder)).flavors[FLAVOR_NAME][DATA])


def refusal(message: str) -> MlflowException:
    """
    Return the error that a server answers with status 400 and this message; any other error would be answered with a
    stack.
    """
    from mlflow.exceptions import MlflowException

    error: MlflowException = MlflowException.invalid_parameter_value(message)
    return error
