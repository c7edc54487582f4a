"""The registered model that a training starts from, as operators look it up before they name the work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mlops.contract.refs import CheckpointRef, ModelVersionRef
from mlops.contract.sections.warm_start import Initialise, StoredWeights
from mlops_provider.connections import login_of
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.operators.champion import asked
from mlops_provider.registry import NotOursError, find_model_version


def initial_model(train: Mapping[str, Any]) -> str | None:
    """Name of the registered model that a training starts from; None where it starts from none."""
    start = train["initialise"]
    return None if start is None or start["model"] is None else start["model"].partition("@")[0].partition("/")[0]


def initial_version(train: Mapping[str, Any], deployment: Deployment) -> ModelVersionRef | None:
    """The version that a training starts from; None where it starts from none."""
    if (name := initial_model(train)) is None:
        return None
    model = train["initialise"]["model"]
    alias, number = model.partition("@")[2] or None, model.partition("/")[2] or None
    reader = login_of("reader", deployment)
    try:
        found = asked(
            find_model_version(deployment.tracking_uri, name, version=number, alias=alias, login=reader),
            f"{model}, which train.initialise names, cannot be looked up",
        )
    except NotOursError as error:
        raise StepFailedError(f"{error}, so that train.initialise cannot start from it") from error
    if found is None:
        raise StepFailedError(
            f"there is no {model}, which train.initialise names; what there is: mlops models history {name}"
        )
    return found


def with_weights(train: Mapping[str, Any], version: ModelVersionRef | None) -> dict[str, Any]:
    """The settings of a training, with the weights of the version that it starts from."""
    if version is None:
        return dict(train)
    weights = version.ancestor(CheckpointRef).artifacts["weights"]
    found = StoredWeights(**asdict(weights), version=version.version)
    start = Initialise.model_validate({**train["initialise"], "found": found.model_dump()})
    return {**train, "initialise": start.model_dump(mode="json")}
