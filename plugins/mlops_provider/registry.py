"""The model registry as the airflow runtime sees it: MLflow's REST API, without MLflow."""

from __future__ import annotations

import json
from typing import Any

import httpx

from mlops_provider.refs import ModelVersionRef, ReportRef
from mlops_provider.stages import CHAMPION

REF_TAG = "mlops.ref"
"""Tag of a model version that holds its whole ref chain as JSON."""
VERSION_TAG = "mlops.semantic_version"


class RegistryError(RuntimeError):
    """The registry cannot be reached, or answered with an error."""


class NotOursError(RegistryError):
    """The version was registered by other means than a pipeline."""


async def find_model_version(
    tracking_uri: str, model: str, *, version: str | None = None, alias: str | None = None
) -> ModelVersionRef | None:
    """
    The ref of a registered version, by number or by alias; None where there is none (yet).

    :raises RegistryError: where the server cannot be reached, or a pipeline did not register that version
    """
    found = await _find(tracking_uri, model, version=version, alias=alias)
    if found is None:
        return None
    tags = {tag["key"]: tag["value"] for tag in found.get("tags", [])}
    if REF_TAG not in tags:
        raise NotOursError(
            f"version {found['version']} of {model!r} has no tag {REF_TAG}: it was not registered by a pipeline"
        )
    return ModelVersionRef(
        place="",
        name=model,
        version=str(found["version"]),
        # Given in a second step: one that was registered this moment may have none yet.
        semantic_version=tags.get(VERSION_TAG, ""),
        parent=ReportRef.from_wire(json.loads(tags[REF_TAG])),
    )


async def champion_version(tracking_uri: str, model: str) -> str | None:
    """
    The number of the version in production, whoever registered it.

    :raises RegistryError: where the server cannot be reached
    """
    found = await _find(tracking_uri, model, alias=CHAMPION)
    return None if found is None else str(found["version"])


async def _find(
    tracking_uri: str, model: str, *, version: str | None = None, alias: str | None = None
) -> dict[str, Any] | None:
    if (version is None) == (alias is None):
        raise ValueError(f"name either a version or an alias of {model!r}")
    path, query = ("alias", {"alias": alias}) if alias else ("", {"version": version})
    url = f"{tracking_uri}/api/2.0/mlflow/" + ("registered-models/alias" if path else "model-versions/get")
    try:
        async with httpx.AsyncClient(timeout=10) as client:
            response = await client.get(url, params={"name": model, **query})
    except httpx.HTTPError as error:
        raise RegistryError(f"MLflow at {tracking_uri} cannot be reached: {error!r}") from error
    if response.status_code == httpx.codes.NOT_FOUND or _is_missing(response):
        return None
    if response.is_error:
        raise RegistryError(f"MLflow at {tracking_uri} answered {response.status_code}: {response.text[:200]}")
    found = _document(response).get("model_version")
    if not isinstance(found, dict):
        raise RegistryError(
            f"what answers at {tracking_uri} is not MLflow, or something stands between: {response.text[:200]!r}"
        )
    return found


def _is_missing(response: httpx.Response) -> bool:
    # MLflow answers 400 INVALID_PARAMETER_VALUE for an alias that is not set.
    if response.status_code != httpx.codes.BAD_REQUEST:
        return False
    return "not found" in str(_document(response).get("message")).lower()


def _document(response: httpx.Response) -> dict[str, Any]:
    """Empty where the answer is something else, such as a proxy's page."""
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
