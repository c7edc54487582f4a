"""The plugin: serves the reports of the steps behind Airflow's own login."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from mlops_provider.reports import app


class MlopsPlugin(AirflowPlugin):
    name = "mlops"
    fastapi_apps = [{"app": app, "url_prefix": "/mlops", "name": "MLOps"}]  # noqa: RUF012
