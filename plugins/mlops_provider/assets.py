"""The Airflow Assets that carry refs between DAGs."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset

from mlops.contract.refs import DatasetRef, ModelVersionRef, PredictionsRef, Ref
from mlops.contract.results import CANDIDATE


def event_extra(ref: Ref) -> dict[str, Any]:
    """Return the extra of an Asset's event: first what people look for in Airflow's pages, then the whole ref."""
    return {**_facts(ref), "ref": ref.to_wire()}


def _facts(ref: Ref) -> dict[str, Any]:
    match ref:
        case DatasetRef():
            return {"version": ref.version[:12], "rows": ref.num_rows, "as_of": ref.interval_end}
        case ModelVersionRef():
            report = ref.parent
            metrics = {name: value for name, value in report.metrics.items() if f"{CANDIDATE}{name}" in report.metrics}
            said = {"metrics": metrics, "reason": report.reason}
            return {"version": ref.version, "semantic_version": ref.semantic_version, **said}
        case PredictionsRef():
            return {"model_version": ref.model_version, "rows": ref.num_rows}
    return {}


def dataset_asset(name: str) -> Asset:
    """Updated with each new snapshot; the event's extra holds the DatasetRef under ``ref``."""
    return Asset(uri=f"dataset://{name}", name=f"dataset://{name}", group="dataset")


def model_asset(name: str) -> Asset:
    """Updated when another version is in production; the event's extra holds the ModelVersionRef under ``ref``."""
    return Asset(uri=f"model://{name}", name=f"model://{name}", group="model")


def predictions_asset(name: str) -> Asset:
    """Updated when a snapshot's rows were predicted; the event's extra holds the PredictionsRef under ``ref``."""
    return Asset(uri=f"predictions://{name}", name=f"predictions://{name}", group="predictions")
