"""The model in production, as operators look it up: where the registry is away, the task waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from mlops.contract.outages import MLFLOW
from mlops.contract.refs import ModelVersionRef
from mlops.contract.stages import CHAMPION
from mlops_provider.connections import login_of
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError, StepOutageError, StepRetryableError
from mlops_provider.mlflow_rest import AwayError, MlflowError, RefusedError
from mlops_provider.registry import NotOursError, champion_version, find_model_version

T = TypeVar("T")


def champion_of(model: str, deployment: Deployment) -> ModelVersionRef | None:
    """
    The version in production; None where there is none.

    :raises NotOursError: where it was registered by other means than a pipeline
    """
    reader = login_of("reader", deployment)
    return asked(find_model_version(deployment.tracking_uri, model, alias=CHAMPION, login=reader))


def version_of(
    model: str, deployment: Deployment, what: str, *, version: str | None = None, alias: str | None = None
) -> ModelVersionRef | None:
    """
    The version of a number or of an alias, which a task takes; None where there is none.

    :param what: it is, for messages: ``taxi@champion, which train.initialise names``
    :raises StepFailedError: where the model is another team's, or a pipeline did not register the version
    """
    if (why := deployment.tenant.why_not_name(model)) is not None:  # a run may name another one than the DAG
        raise StepFailedError(f"cannot take {what}: {why}")
    reader = login_of("reader", deployment)
    request = find_model_version(deployment.tracking_uri, model, version=version, alias=alias, login=reader)
    try:
        return asked(request, f"{what}, cannot be looked up")
    except NotOursError as error:
        raise StepFailedError(f"cannot take {what}: {error}") from error


def why_not_champion(version: ModelVersionRef, deployment: Deployment) -> str | None:
    """
    Say why a version is not in production any more; None where it is.

    For a task that is cleared after others decided otherwise: the listeners of its asset would serve what is not in
    production any more.
    """
    reader = login_of("reader", deployment)
    champion = asked(champion_version(deployment.tracking_uri, version.name, reader))
    if champion == version.version:
        return None
    now = "none is" if champion is None else f"version {champion} is"
    return (
        f"version {version.version} of {version.name} was put into production, but {now} by now, and it is not put "
        f"there again. Who did it, and why: mlops models history {version.name}"
    )


def asked(request: Coroutine[Any, Any, T], what: str = "the model in production cannot be looked up") -> T:
    """
    What the registry answers.

    :param what: begins the message where it does not
    """
    try:
        return asyncio.run(request)
    except NotOursError:
        raise
    except RefusedError as error:
        raise StepFailedError(f"{what}: {error}") from error
    except AwayError as error:
        raise StepOutageError(f"{what}: {error}", MLFLOW) from error
    except MlflowError as error:
        raise StepRetryableError(f"{what}: {error}") from error
