"""The trainings of a run of Airflow, and what the store has of them while they go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import obstore
from obstore.store import ObjectStore

from mlops.contract.checkpoint_listing import Listing, listing_of, markers, root_of
from mlops.contract.sections.checkpointing import ResumeFrom
from mlops.contract.step import BadConfigError
from mlops_provider.api.airflow import Airflow
from mlops_provider.api.deployments import Mlflow, of_name
from mlops_provider.api.metrics import trainings_of
from mlops_provider.api.problems import Problem
from mlops_provider.committed import read_bytes
from mlops_provider.curves import Tracking
from mlops_provider.experiments.names import tried_out
from mlops_provider.gathering import gather


def pipeline_of(run: Mapping[str, Any]) -> str:
    """Return the pipeline that a run is of, or tries out."""
    dag_id: str = run["dag_id"]
    return tried_out(dag_id) or dag_id


async def places_of(run: Mapping[str, Any], airflow: Airflow) -> list[str]:
    """Find the places of a run's trainings, those of a search's trials left out, the oldest first."""
    mlflow = await of_name(pipeline := pipeline_of(run), Mlflow.of_steps)
    async with Tracking.open(*mlflow) as tracking:
        places = [each.place for each in await trainings_of(run, tracking, airflow) if _is_of(each.place, pipeline)]
    return list(dict.fromkeys(places))


def _is_of(place: str, pipeline: str) -> bool:
    # What MLflow keeps of a run can be edited: it may lead to no other place.
    try:
        return ResumeFrom(training=place, step=1).pipeline == pipeline and not place.endswith("/start")
    except ValueError:
        return False


async def sizes_below(store: ObjectStore, folder: str) -> dict[str, int]:
    """Return the sizes in bytes of all objects below a folder, by their keys."""
    sizes: dict[str, int] = {}
    async for page in obstore.list(store, folder):
        sizes |= {entry["path"]: entry["size"] for entry in page}
    return sizes


async def checkpoints_at(store: ObjectStore, place: str) -> Listing:
    """
    Return the checkpoints of a training, by their markers.

    :raises Problem: where another release wrote them
    """
    sizes = await sizes_below(store, root_of(place))
    keys = list(markers(sizes, place))
    data = dict(zip(keys, await gather(lambda key: read_bytes(store, key), keys), strict=True))

    def read(key: str) -> bytes:
        if (found := data[key]) is None:
            raise FileNotFoundError(key)
        return found

    try:
        return listing_of(sizes, place, read)
    except BadConfigError as error:
        raise Problem(409, str(error)) from None
