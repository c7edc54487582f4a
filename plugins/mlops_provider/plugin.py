"""
The plugin: serves the reports of the steps behind Airflow's own login, makes forms of approvals anew, and keeps an API
server on SQLite from waiting for itself.
"""

from __future__ import annotations

from typing import Any

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from mlops_provider.forms import FreshForms
from mlops_provider.reports import app
from mlops_provider.turns import OneWriter


class MlopsPlugin(AirflowPlugin):
    name = "mlops"
    fastapi_root_middlewares: list[dict[str, Any]] = [  # noqa: RUF012
        {"middleware": FreshForms, "name": "Fresh forms of approvals"}
    ]
    if conf.get("database", "sql_alchemy_conn").startswith("sqlite"):
        fastapi_root_middlewares.append({"middleware": OneWriter, "name": "One writer of SQLite"})
    fastapi_apps = [{"app": app, "url_prefix": "/mlops", "name": "MLOps"}]  # noqa: RUF012
