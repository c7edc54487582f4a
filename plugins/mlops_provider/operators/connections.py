"""Airflow's connections, as a step's process gets them."""

from __future__ import annotations

import json

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from mlops_provider.exceptions import StepFailedError


def resolve_connection(place: str, connection: str) -> str:
    """
    An Airflow connection as :func:`mlops_provider.step.connection_variable` describes it.

    :param place: of the setting that names it, e.g. ``features.online.connection``
    :raises StepFailedError: where Airflow has no such connection
    """
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
