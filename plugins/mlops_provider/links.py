"""Buttons on a task in the Airflow UI. Each shows what the operator put there while it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from mlops_provider.refs import ModelVersionRef

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


def model_url(tracking_url: str, version: ModelVersionRef) -> str:
    """Address of a version in MLflow's pages."""
    return f"{tracking_url}/#/models/{version.name}/versions/{version.version}"


def report_url(key: str) -> str:
    """Address of a report in the Airflow web server, relative to its root."""
    return f"{REPORTS_PREFIX}/{key}"
