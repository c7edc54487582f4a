"""Buttons on a task in the Airflow UI. Each shows what the operator put there while it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

from mlops_provider.airflow_pages import curves_page

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
        return _below(links.get(self.name, ""))


class CurvesLink(BaseOperatorLink):
    """The page of the run, with its curves while they grow: there from the beginning of the task."""

    name = "Curves"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return _below(curves_page(ti_key.dag_id, ti_key.run_id))


class ReportLink(StepLink):
    name = "Report"


class TrackingLink(StepLink):
    name = "MLflow run"


class ModelLink(StepLink):
    name = "MLflow model version"


def _below(address: str) -> str:
    """Return an address as Airflow's pages take it to be below their own, which may have a prefix."""
    return address.removeprefix("/")


def model_url(deployment: Deployment, version: ModelVersionRef) -> str:
    """Address of a version in MLflow's pages."""
    # Its pages for language models come first. Of a run it drops what is asked, on the way to the run's experiment.
    return _page(deployment, f"models/{version.name}/versions/{version.version}", workflowType="machine_learning")


def run_url(deployment: Deployment, run_id: str) -> str:
    """Address of a run in MLflow's pages."""
    return _page(deployment, f"runs/{run_id}")


def _page(deployment: Deployment, path: str, **asked: str) -> str:
    if deployment.workspace is not None:  # without it MLflow shows the one that was looked at last
        asked["workspace"] = deployment.workspace
    return f"{deployment.tracking_url}/#/{path}{f'?{urlencode(asked)}' if asked else ''}"


def report_url(key: str) -> str:
    """Address of a report in the Airflow web server, relative to its root."""
    return f"{REPORTS_PREFIX}/{key}"
