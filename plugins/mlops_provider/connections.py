"""Airflow's connections: as a step's process gets them, and as the store is opened with them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from obstore.store import ObjectStore

from mlops.contract.step import STEPS, TRACKING_VARIABLES, WORKSPACE_VARIABLE, connection_variable
from mlops_provider.committed import open_store
from mlops_provider.deployment import SECTION, Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.logins import Login


def secret_environment(step: str, connections: Mapping[str, str], deployment: Deployment) -> dict[str, str]:
    """
    The secrets of a step's process: its connections, its login at MLflow where that has one, and the credentials of the
    store where that has its own.

    :param connections: ids by the setting that names them, e.g. ``features.online.connection``
    :raises StepFailedError: where Airflow has no such connection, or two would have the same variable
    """
    purpose = STEPS[step].login
    login = None if purpose is None else login_of(purpose, deployment)
    return (
        connection_environment(connections)
        | login_environment(login, TRACKING_VARIABLES)
        | store_environment(deployment)
    )


def store_of(deployment: Deployment, *, retry: bool = True) -> ObjectStore:
    """
    Open the deployment's store.

    :param retry: see :func:`mlops_provider.committed.open_store`
    :raises StepFailedError: where Airflow has no such connection, or it has no credentials
    """
    return open_store(deployment.store, store_environment(deployment), retry=retry)


def store_environment(deployment: Deployment) -> dict[str, str]:
    """
    The store's own credentials, by the variables that its client reads; nothing where it has none.

    :raises StepFailedError: where Airflow has no such connection, or it has no credentials
    """
    if (connection := deployment.store_connection) is None:
        return {}
    place = f"store_connection of team {deployment.tenant.name!r}"
    found = _find(place, connection)
    if not found.login or not found.password:
        raise StepFailedError(f"{place}: connection {connection!r} has no access key (login) or no secret (password)")
    extra = found.extra_dejson
    endpoint = extra.get("endpoint_url") or ""
    given = {
        "AWS_ACCESS_KEY_ID": found.login,
        "AWS_SECRET_ACCESS_KEY": found.password,
        "AWS_SESSION_TOKEN": extra.get("aws_session_token"),
        "AWS_REGION": extra.get("region_name"),
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true" if endpoint.startswith("http://") else None,
    }
    return {name: value for name, value in given.items() if value}


def login_of(purpose: str, deployment: Deployment) -> Login | None:
    """
    User and password at MLflow; None where neither ``[mlops]`` nor the team names a connection for that purpose.

    :raises StepFailedError: where Airflow has no such connection, or it has no user or no password
    """
    if (connection := deployment.logins.get(purpose)) is None:
        return None
    team = deployment.tenant.name
    place = f"[{SECTION}] {purpose}_login" if team is None else f"{purpose}_login of team {team!r}"
    found = _find(place, connection)
    if not found.login or not found.password:
        raise StepFailedError(f"{place}: connection {connection!r} has no user or no password")
    return Login(found.login, found.password, deployment.workspace)


def login_environment(login: Login | None, variables: tuple[str, str]) -> dict[str, str]:
    """A login as these variables of a process; nothing where there is none."""
    if login is None:
        return {}
    workspace = {} if login.workspace is None else {WORKSPACE_VARIABLE: login.workspace}
    return dict(zip(variables, login.auth, strict=True)) | workspace


def connection_environment(connections: Mapping[str, str]) -> dict[str, str]:
    """
    Variables with Airflow connections, see :func:`mlops.contract.step.connection_variable`.

    :param connections: ids by the setting that names them, e.g. ``features.online.connection``
    :raises StepFailedError: where Airflow has no such connection, or two would have the same variable
    """
    names: dict[str, str] = {}
    for place, connection in connections.items():
        known = names.setdefault(connection_variable(connection), connection)
        if known != connection:
            raise StepFailedError(
                f"{place}: {connection!r} and {known!r} differ only in case or punctuation; rename one of these "
                "connections"
            )
    return {connection_variable(connection): _resolve(place, connection) for place, connection in connections.items()}


def _resolve(place: str, connection: str) -> str:
    found = _find(place, connection)
    fields = ("conn_type", "host", "port", "login", "password", "schema")
    # extra_dejson has Airflow mask what looks secret in it.
    return json.dumps({name: getattr(found, name) for name in fields} | {"extra": found.extra_dejson})


def _find(place: str, connection: str) -> Connection:
    try:
        return BaseHook.get_connection(connection)
    except AirflowNotFoundException as error:
        raise StepFailedError(
            f"{place}: Airflow has no connection {connection!r}; add it (Admin > Connections, or a secrets backend), "
            "or change the setting"
        ) from error
