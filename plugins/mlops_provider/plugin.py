"""
The plugin: serves the REST API and the reports of the steps behind Airflow's own login, makes forms of approvals anew,
keeps an API server on SQLite from waiting for itself, writes notes of runs that have ended, and brings pages:
Tonight, and those of a run and of a model.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin
from starlette.types import ASGIApp, Receive, Scope, Send

from mlops.contract.addresses import API_PREFIX
from mlops_provider.forms import FreshForms
from mlops_provider.run_notes import RunNotes
from mlops_provider.turns import OneWriter


class _Lazily:
    """
    An app that is imported with its first request. Each part of Airflow loads the plugins, each task's process too,
    and only the API server answers requests.

    :param module: that holds it, as ``app``
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            module = await asyncio.to_thread(import_module, self._module)
            self._app = module.app
        await self._app(scope, receive, send)


class MlopsPlugin(AirflowPlugin):
    name = "mlops"
    listeners = [RunNotes()]  # noqa: RUF012
    fastapi_root_middlewares: list[dict[str, Any]] = [  # noqa: RUF012
        {"middleware": FreshForms, "name": "Fresh forms of approvals"}
    ]
    if conf.get("database", "sql_alchemy_conn").startswith("sqlite"):
        fastapi_root_middlewares.append({"middleware": OneWriter, "name": "One writer of SQLite"})
    react_apps = [  # noqa: RUF012
        # Without a leading slash: it is found below a prefix of Airflow's address, too.
        {
            "name": "Tonight",
            "bundle_url": "mlops/pages/tonight.js",
            "destination": "nav",
            "url_route": "mlops-tonight",
            "nav_top_level": True,
        },
        {
            "name": "Pipeline run",
            "bundle_url": "mlops/pages/run.js",
            "destination": "dag_run",
            "url_route": "mlops-run",
        },
        {
            "name": "Pipeline model",
            "bundle_url": "mlops/pages/model.js",
            "destination": "dag",
            "url_route": "mlops-model",
        },
    ]
    fastapi_apps = [  # noqa: RUF012
        # The API comes before what lies around it.
        {"app": _Lazily("mlops_provider.api.app"), "url_prefix": API_PREFIX, "name": "MLOps API"},
        {"app": _Lazily("mlops_provider.reports"), "url_prefix": "/mlops", "name": "MLOps"},
    ]
