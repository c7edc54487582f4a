"""The model registry as the airflow runtime sees it: MLflow's REST API, without MLflow."""

from __future__ import annotations

import json
from typing import Any

import httpx

from mlops.contract.refs import ModelVersionRef, ReportRef
from mlops.contract.stages import CHAMPION
from mlops_provider.logins import WORKSPACE, Login
from mlops_provider.mlflow_rest import (
    AwayError,
    LoginError,
    MlflowError,
    MlflowReader,
    ask,
    check,
    document_of,
    field_of,
)

REF_TAG = "mlops.ref"
"""Tag of a model version that holds its whole ref chain as JSON."""
VERSION_TAG = "mlops.semantic_version"
PIPELINE_TAG = "mlops.dataset"
"""Tag of a version that a pipeline has registered: a dataset has the pipeline's name."""
_PAGE = 100


class Registry(MlflowReader):
    """Reads a deployment's models, as MLflow has them. Each method raises :class:`MlflowError`."""

    purpose = "reader"

    async def models(self) -> list[dict[str, Any]]:
        """Return all models that the login may read."""
        found: list[dict[str, Any]] = []
        token = ""
        while True:
            query = {"max_results": _PAGE, "page_token": token}
            page = await self._ask("GET", "registered-models/search", params=query)
            found += page.get("registered_models", [])
            if not (token := page.get("next_page_token", "")):
                return found

    async def model(self, name: str) -> dict[str, Any]:
        return dict((await self._ask("GET", "registered-models/get", params={"name": name}))["registered_model"])

    async def versions(self, model: str, most: int, below: int | None = None) -> list[dict[str, Any]]:
        """
        Return the versions of a model that pipelines have registered, the newest first.

        :param model: its name, without quotes
        :param most: so many of them
        :param below: only lower numbers
        """
        conditions = [f"name = '{model}'", f"tags.`{PIPELINE_TAG}` LIKE '%'"]
        if below is not None:
            conditions.append(f"version_number < {below}")
        query = {"filter": " and ".join(conditions), "order_by": "version_number DESC", "max_results": most}
        page = await self._ask("GET", "model-versions/search", params=query)
        return list(page.get("model_versions", []))


class NotOursError(MlflowError):
    """The version was registered by other means than a pipeline."""


async def find_model_version(
    tracking_uri: str, model: str, *, version: str | None = None, alias: str | None = None, login: Login | None = None
) -> ModelVersionRef | None:
    """
    The ref of a registered version, by number or by alias; None where there is none (yet).

    :param login: of the deployment's reader
    :raises LoginError: where the server does not let it read
    :raises MlflowError: where the server cannot be reached, or a pipeline did not register that version
    """
    found = await _find(tracking_uri, login, model, version=version, alias=alias)
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


async def champion_version(tracking_uri: str, model: str, login: Login | None = None) -> str | None:
    """
    The number of the version in production, whoever registered it.

    :param login: of the deployment's reader
    :raises LoginError: where the server does not let it read
    :raises MlflowError: where the server cannot be reached
    """
    found = await _find(tracking_uri, login, model, alias=CHAMPION)
    return None if found is None else str(found["version"])


async def set_version_tag(
    tracking_uri: str, version: ModelVersionRef, tag: str, value: str, login: Login | None = None
) -> None:
    """
    :param login: of the deployment's releases
    :raises MlflowError: where the server cannot be reached, or refuses it
    """
    body = {"name": version.name, "version": version.version, "key": tag, "value": value}
    response = await ask(tracking_uri, login, "POST", "model-versions/set-tag", json=body)
    check(response, tracking_uri, "release")


async def _find(
    tracking_uri: str, login: Login | None, model: str, *, version: str | None = None, alias: str | None = None
) -> dict[str, Any] | None:
    if (version is None) == (alias is None):
        raise ValueError(f"name either a version or an alias of {model!r}")
    # Of a model that is not there MLflow's login forbids to read versions; that it is not there it says.
    try:
        registered = await _get(tracking_uri, login, "registered-models/get", "registered_model", name=model)
    except LoginError:
        # With workspaces it forbids that too.
        if login is None or not await _may_read_all_models(tracking_uri, login):
            raise
        return None
    if registered is None:
        return None
    if alias is not None:
        aliases = {entry["alias"]: str(entry["version"]) for entry in registered.get("aliases", [])}
        version = aliases.get(alias)
    if version is None:
        return None
    return await _get(tracking_uri, login, "model-versions/get", "model_version", name=model, version=version)


async def _may_read_all_models(tracking_uri: str, login: Login) -> bool:
    """Whether what this login may not read is not there."""
    async with httpx.AsyncClient(timeout=10, auth=login.auth) as client:
        address = f"{tracking_uri}/api/3.0/mlflow/users/roles/list"
        try:
            response = await client.get(address, params={"username": login.user})
        except httpx.HTTPError as error:
            raise AwayError(f"MLflow at {tracking_uri} cannot be reached: {error!r}") from error
    roles = document_of(response).get("roles", []) if response.is_success else []
    return any(
        role["workspace"] == (login.workspace or WORKSPACE)
        and any(
            grant["resource_type"] == "registered_model"
            and grant["resource_pattern"] == "*"
            and grant["permission"] in ("READ", "EDIT", "MANAGE")
            for grant in role["permissions"]
        )
        for role in roles
    )


async def _get(tracking_uri: str, login: Login | None, path: str, field: str, **query: str) -> dict[str, Any] | None:
    response = await ask(tracking_uri, login, "GET", path, params=query)
    if response.status_code == httpx.codes.NOT_FOUND or _is_missing(response):
        return None
    check(response, tracking_uri, "reader")
    return field_of(response, field, tracking_uri)


def _is_missing(response: httpx.Response) -> bool:
    # MLflow answers 400 INVALID_PARAMETER_VALUE for an alias that is not set.
    if response.status_code != httpx.codes.BAD_REQUEST:
        return False
    return "not found" in str(document_of(response).get("message")).lower()
