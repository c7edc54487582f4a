"""The Airflow Assets that carry refs between DAGs."""

from __future__ import annotations

from airflow.sdk import Asset


def dataset_asset(name: str) -> Asset:
    """Updated with each new snapshot; the event's extra holds the DatasetRef under ``ref``."""
    return Asset(uri=f"dataset://{name}", name=f"dataset://{name}", group="dataset")


def model_asset(name: str) -> Asset:
    """Updated when another version is in production; the event's extra holds the ModelVersionRef under ``ref``."""
    return Asset(uri=f"model://{name}", name=f"model://{name}", group="model")


def predictions_asset(name: str) -> Asset:
    """Updated when a snapshot's rows were predicted; the event's extra holds the PredictionsRef under ``ref``."""
    return Asset(uri=f"predictions://{name}", name=f"predictions://{name}", group="predictions")
