"""The files of models in MLflow, each content stored once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from mlops.tracking.run import StoredRun, translated

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.pyfunc import PyFuncModel

LoadedModel: TypeAlias = "PyFuncModel"
"""Type of the object that MLflow loads from a model's folder."""
CONTENT_TAG: Final = "mlops.content_sha256"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredModel:
    """A set of stored model files that any number of versions may point at; MLflow's name for it is a logged model."""

    model_id: str
    uri: str


def store_model(run: StoredRun, name: str, folder: Path, digest: str) -> StoredModel:
    """
    Find the folder among the models of the run's experiment, else store it. Its status READY is the commit: if killed
    before, the next attempt goes on in the same place; two at once write the same bytes. Files that somebody removed
    are stored again.

    :param name: name by which people find it in the experiment
    :param digest: digest of the folder's content
    """
    client = run.client
    with translated(f"cannot store the model of run {run.run_id}"):
        experiment = client.get_run(run.run_id).info.experiment_id
        found: list[LoggedModel] = client.search_logged_models(
            [experiment], filter_string=f"tags.`{CONTENT_TAG}` = '{digest}'"
        )
        found.sort(key=lambda model: (str(model.status) != "READY", model.creation_timestamp, model.model_id))
        if found:
            model = found[0]
        else:
            model = client.create_logged_model(
                experiment, name=name, source_run_id=run.run_id, tags={CONTENT_TAG: digest}
            )
        if str(model.status) != "READY" or not _has_files(client, model):
            client.log_model_artifacts(model.model_id, str(folder))
            client.finalize_logged_model(model.model_id, "READY")
    return StoredModel(model_id=model.model_id, uri=model.artifact_location)


def fetch_files(client: MlflowClient, model: str, version: str, folder: Path) -> None:
    """
    Fetch the files of a registered version, as MLflow has them; none of them is loaded.

    :param folder: folder for the files, made if it is missing
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    folder.mkdir(parents=True, exist_ok=True)
    with translated(f"cannot fetch the files of {model}/{version}"):
        # Of `models:/...` MLflow would ask the process's own server, whichever this client's is.
        source = client.get_model_version_download_uri(model, version)
        get_artifact_repository(source, tracking_uri=client.tracking_uri).download_artifacts("", dst_path=str(folder))


def load_folder(folder: Path) -> LoadedModel:
    """Load the model in a folder as MLflow does: this runs code that lies there."""
    from mlflow.pyfunc import load_model

    loaded: LoadedModel = load_model(str(folder))
    return loaded


def _has_files(client: MlflowClient, model: LoggedModel) -> bool:
    return any(file.path == "MLmodel" for file in client.list_logged_model_artifacts(model.model_id))
