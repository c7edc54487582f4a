"""Somebody who may write MLflow, against who loads a version from there."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import requests
from mlflow import MlflowClient
from signed_decisions import FOREIGN, KEY, OTTOS, TRUSTED

from mlops.contract.refs import ModelVersionRef
from mlops.serving.verified_loading import ForgedModelError, fetch_verified, load_verified
from mlops.signing.packages import PACKAGE, SIGNATURE_TAG, PackageSeal, package_key

SPIES = "\nimport pathlib\npathlib.Path({path!r}).touch()\n"


def sign(project: Any, version: ModelVersionRef, key: Any = KEY, number: str | None = None) -> None:
    """As the register operator does."""
    files = version.artifacts[PACKAGE]
    seal = PackageSeal(
        model=version.name,
        version=number or version.version,
        sha256=files.sha256,
        files=files.key,
        signed_for="the night",
    )
    envelope = seal.sealed(key)
    project.store.put(package_key(version.name, version.version), envelope)
    client = MlflowClient(tracking_uri=project.tracking_uri)
    client.set_model_version_tag(version.name, version.version, SIGNATURE_TAG, envelope.decode())


def replace_library(project: Any, version: ModelVersionRef, spied: Path) -> None:
    """Put other code into a version, as anybody can who reaches an MLflow without a login."""
    client = MlflowClient(tracking_uri=project.tracking_uri)
    source = client.get_model_version_download_uri(version.name, version.version)
    path = source.partition("mlflow-artifacts:/")[2].lstrip("/")
    url = f"{project.tracking_uri}/api/2.0/mlflow-artifacts/artifacts/{path}/library.zip"
    library = io.BytesIO(requests.get(url, timeout=60).content)
    with zipfile.ZipFile(library, "a") as archive:
        text = archive.read("mlops/__init__.py").decode() + SPIES.format(path=str(spied))
        archive.writestr("mlops/__init__.py", text)
    requests.put(url, data=library.getvalue(), timeout=60).raise_for_status()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_files_that_were_replaced_are_not_loaded(
    project: Any, toy_checkpoint: Any, register: Any, tmp_path: Path
) -> None:
    """Attack 5: a library that somebody had put into the champion's artifacts ran where the champion was loaded."""
    version = register(toy_checkpoint())
    places = (project.tracking_uri, version.name, version.version)
    with pytest.raises(ForgedModelError, match="is not signed"):
        fetch_verified(*places, tmp_path / "unsigned", trusted=TRUSTED)
    sign(project, version)
    model = load_verified(*places, tmp_path / "whole", trusted=TRUSTED)
    assert len(model.predict(model.input_example))

    replace_library(project, version, tmp_path / "spied")
    with pytest.raises(ForgedModelError, match=r"changed: library\.zip\. Nothing of it was loaded"):
        fetch_verified(*places, tmp_path / "replaced", trusted=TRUSTED, store=project.store)
    with pytest.raises(ForgedModelError, match="the digest of its files is"):
        load_verified(*places, tmp_path / "again", trusted=TRUSTED)
    assert not (tmp_path / "spied").exists()

    # A signature of somebody else, of a person, or of another version, does not help.
    for key in (FOREIGN, OTTOS):
        sign(project, version, key)
        with pytest.raises(ForgedModelError, match="does not hold: it is signed by"):
            load_verified(*places, tmp_path / "foreign", trusted=TRUSTED)
    sign(project, version, number="7")
    with pytest.raises(ForgedModelError, match=f"is that of {version.name}/7"):
        load_verified(*places, tmp_path / "other", trusted=TRUSTED)
