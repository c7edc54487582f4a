"""Buttons on a task in the Airflow UI. Each shows what the operator put there while it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from mlops.contract.refs import ModelVersionRef
    from mlops_provider.deployment import Deployment

REPORTS_PREFIX = "/mlops/reports"
"""Where the plugin serves the reports of the store."""


class StepLink(BaseOperatorLink):
    """Airflow stores the address when the task ends, also when it failed."""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        links: dict[str, str] = getattr(operator, "links", {})
        return links.get(self.name, "")


class ReportLink(StepLink):
    name = "Report"


class TrackingLink(StepLink):
    name = "MLflow run"


class ModelLink(StepLink):
    name = "MLflow model version"


def model_url(deployment: Deployment, version: ModelVersionRef) -> str:
    """Address of a version in MLflow's pages."""
    return _page(deployment, f"models/{version.name}/versions/{version.version}")


def run_url(deployment: Deployment, run_id: str) -> str:
    """Address of a run in MLflow's pages."""
    return _page(deployment, f"runs/{run_id}")


def _page(deployment: Deployment, path: str) -> str:
    # Without it MLflow shows the workspace that was looked at last.
    workspace = "" if deployment.workspace is None else f"?workspace={quote(deployment.workspace, safe='')}"
    return f"{deployment.tracking_url}/#/{path}{workspace}"


def report_url(key: str) -> str:
    """Address of a report in the Airflow web server, relative to its root."""
    return f"{REPORTS_PREFIX}/{key}"
