"""Airflow's connections, as a step's process gets them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from mlops_provider.exceptions import StepFailedError
from mlops_provider.step import connection_variable


def connection_environment(connections: Mapping[str, str]) -> dict[str, str]:
    """
    Variables with Airflow connections, see :func:`mlops_provider.step.connection_variable`.

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
    try:
        found = BaseHook.get_connection(connection)
    except AirflowNotFoundException as error:
        raise StepFailedError(
            f"{place}: Airflow has no connection {connection!r}; add it (Admin > Connections, or a secrets backend), "
            "or change the setting"
        ) from error
    fields = ("conn_type", "host", "port", "login", "password", "schema")
    # extra_dejson has Airflow mask what looks secret in it.
    return json.dumps({name: getattr(found, name) for name in fields} | {"extra": found.extra_dejson})
