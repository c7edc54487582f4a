"""Runs when flight_ranking has another version in production: another team's DAG needs to know only the asset."""

from typing import Any

from airflow.sdk import DAG, task

from mlops.contract.refs import DatasetRef, ModelVersionRef
from mlops_provider.assets import model_asset

MODEL = model_asset("flight_ranking")

with DAG(dag_id="ranking_published", schedule=[MODEL], catchup=False, tags=["downstream"]):

    @task
    def announce(triggering_asset_events: Any = None) -> str:
        """Say which version is in production, and from which snapshot it was made."""
        event = triggering_asset_events[MODEL][-1]
        version = ModelVersionRef.from_wire(event.extra["ref"])
        snapshot = version.ancestor(DatasetRef)
        message = f"{version.name} version {version.version} was trained on snapshot {snapshot.version[:12]}"
        print(message)
        return message

    announce()
