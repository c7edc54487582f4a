"""``mlops register``: have a pipeline's own run judge a training of an experiment, and register it if it passes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import obstore
from obstore.store import ObjectStore

from mlops.contract.refs import CheckpointRef
from mlops.contract.section import SpecError
from mlops.contract.step import EXPERIMENTS
from mlops_provider.committed import folders, read_committed
from mlops_provider.connections import store_of
from mlops_provider.deployment import Deployment
from mlops_provider.local.client import AirflowClient
from mlops_provider.operators.adopted import PARAM, pipeline_of
from mlops_provider.patience import store_errors


@dataclass(frozen=True, kw_only=True, slots=True)
class Adoption:
    """The run that judges a training."""

    training: str
    dag_id: str
    run_id: str
    is_paused: bool
    """Whether the DAG is: the run then waits until somebody unpauses it."""

    def told(self) -> str:
        """For people."""
        waits = f"; it begins when the DAG is unpaused: airflow dags unpause {self.dag_id}" if self.is_paused else ""
        return (
            f"run {self.run_id} of {self.dag_id} judges {self.training}, and registers it if it passes{waits}\n"
            f"how it goes: mlops why {self.dag_id} {self.run_id}"
        )


def adopt(deployment: Deployment, airflow: AirflowClient, training: str) -> Adoption:
    """
    Start the run.

    :param deployment: whose store holds the experiments
    :param training: its place, or the last part of it, as ``mlops runs list`` shows it
    :raises SpecError: where there is no such training, several, or one that is not whole yet
    :raises SpecError: where Airflow has no DAG of that pipeline, or has such a run already
    """
    with store_errors(deployment.store, "the experiments cannot be read"):
        store = store_of(deployment)
        place = _place(store, training)
        committed = asyncio.run(read_committed(store, place))
    dag_id = pipeline_of(place)
    assert dag_id is not None, "it was found as a place of an experiment"
    if not isinstance(committed, CheckpointRef):
        raise SpecError(f"{place} is not trained to its end: the same mlops run goes on with it")
    _, user, experiment, _, key = place.split("/")
    run_id = f"experiment__{user}__{experiment}__{key}"
    try:
        dag = airflow.request("GET", f"/dags/{dag_id}")
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.NOT_FOUND:
            raise
        raise SpecError(f"Airflow at {airflow.url} has no DAG {dag_id!r}: mlops lint says why, or deploy it") from error
    if PARAM not in airflow.request("GET", f"/dags/{dag_id}/details")["params"]:
        raise SpecError(
            f"{dag_id} takes no experiments, for it can put models into production without anybody's yes: give it "
            "promote.approval, with on_timeout: reject, or put the experiment's settings into its file"
        )
    if airflow.run(dag_id, run_id) is not None:
        raise SpecError(f"{place} was given to the run {run_id} of {dag_id}: see mlops why {dag_id} {run_id}")
    airflow.trigger(dag_id, run_id, None, {PARAM: place})
    return Adoption(training=place, dag_id=dag_id, run_id=run_id, is_paused=dag["is_paused"])


def _place(store: ObjectStore, training: str) -> str:
    known = list(_trainings(store))
    found = [place for place in known if training in (place, place.rpartition("/")[2]) and _is_there(store, place)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SpecError(f"{training} is the name of several trainings; name the place: {', '.join(found)}")
    if any(training in (place, place.rpartition("/")[2]) for place in _nights(store)):
        raise SpecError(f"{training} is the pipeline's own, which its run has judged: see mlops why")
    raise SpecError(
        f"there is no training {training!r} of an experiment; "
        + (f"there are {', '.join(known[-3:])}: see mlops runs list" if known else "try one out: mlops run PIPELINE")
    )


def _is_there(store: ObjectStore, place: str) -> bool:
    """Of what was removed a folder may have stayed."""
    return any(page for page in obstore.list(store, place))


def _trainings(store: ObjectStore) -> Iterator[str]:
    for user in folders(store, EXPERIMENTS):
        for experiment in folders(store, user):
            yield from (place for place in folders(store, f"{experiment}/train") if pipeline_of(place) is not None)


def _nights(store: ObjectStore) -> Iterator[str]:
    """The trainings of the pipelines' own runs."""
    for pipeline in folders(store, "pipelines"):
        yield from folders(store, f"{pipeline}/train")
