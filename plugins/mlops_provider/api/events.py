"""``/runs/{id}/events``: what happened to a run, as Airflow and its trainings tell it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from obstore.store import ObjectStore

from mlops.contract.rest import Event, Events
from mlops.contract.training_events import TrainingEvent, events_of
from mlops_provider.api.airflow import Airflow, AirflowDep
from mlops_provider.api.deployments import of_name
from mlops_provider.api.problems import DOCUMENTED
from mlops_provider.api.runs import find_run, instances_of
from mlops_provider.api.trainings import checkpoints_at, pipeline_of, places_of, sizes_below
from mlops_provider.committed import read_bytes
from mlops_provider.connections import store_of
from mlops_provider.gathering import gather
from mlops_provider.local.client import run_place
from mlops_provider.operators.rollback import is_rollback

router = APIRouter(tags=["events"], responses=DOCUMENTED)


@router.get("/runs/{run}/events")
async def events(run: str, airflow: AirflowDep) -> Events:
    """What happened to a run so far: to its tasks, and to its trainings, also while they go on."""
    found = await find_run(run, airflow)
    several = await asyncio.gather(_of_tasks(found, airflow), _of_trainings(found, airflow))
    together = [event for each in several for event in each]
    return Events(events=sorted(together, key=lambda event: event.at))


async def _of_tasks(run: Mapping[str, Any], airflow: Airflow) -> list[Event]:
    async def tries(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        if task["try_number"] <= 1:
            return [task]
        place = f"{run_place(run['dag_id'], run['dag_run_id'])}/taskInstances/{quote(task['task_id'], safe='')}"
        mapped = "" if task["map_index"] == -1 else f"/{task['map_index']}"
        page = await airflow.found(f"{place}{mapped}/tries")
        return [task] if page is None else list(page["task_instances"])

    several = await gather(tries, await instances_of(run, airflow))
    return [event for found in several for each in found for event in _of_try(each)]


def _of_try(task: Mapping[str, Any]) -> list[Event]:
    name = task["task_id"] if task["map_index"] == -1 else f"{task['task_id']}[{task['map_index']}]"
    found = []
    if task["start_date"] is not None:
        said = f"{name}, try {task['try_number']}"
        found.append(Event(at=task["start_date"], kind="task_started", said=said, task=name))
    if task["end_date"] is not None:
        found.append(Event(at=task["end_date"], kind="task_ended", said=f"{name}: {task['state']}", task=name))
    return found


async def _of_trainings(run: Mapping[str, Any], airflow: Airflow) -> list[Event]:
    if is_rollback(run["dag_id"]):
        return []
    places = await places_of(run, airflow)
    store = await of_name(pipeline_of(run), store_of)
    several = await gather(lambda place: _of_training(store, place), places)
    return [event for each in several for event in each]


async def _of_training(store: ObjectStore, place: str) -> list[Event]:
    keys = list(await sizes_below(store, events_of(place)))
    noted = [_noted(data, place) for data in await gather(lambda key: read_bytes(store, key), keys)]
    listing = await checkpoints_at(store, place)
    saved = [
        Event(
            at=datetime.fromtimestamp(each.saved_at, UTC),
            kind="checkpoint",
            said=f"step {each.step}, {each.num_bytes / 1e6:.1f} MB",
            training=place,
        )
        for each in listing.complete
    ]
    return [each for each in noted if each is not None] + saved


def _noted(data: bytes | None, place: str) -> Event | None:
    """What is no event, or was removed since, hides none of the others."""
    try:
        event = TrainingEvent.load(data or b"")
        return Event(
            at=datetime.fromtimestamp(event.at, UTC),
            kind=event.kind,
            said=event.said,
            training=place,
            node=event.node or None,
        )
    except (ValueError, TypeError, OverflowError, OSError, RecursionError):
        return None
