"""``mlops register``: have a pipeline's own run judge a training of an experiment, and register it if it passes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import obstore
from obstore.store import ObjectStore

from mlops.contract.refs import CheckpointRef, Ref
from mlops.contract.section import SpecError
from mlops.contract.step import EXPERIMENTS, used_key
from mlops_provider.committed import folders, read_committed
from mlops_provider.connections import store_of
from mlops_provider.deployment import Deployment
from mlops_provider.local.client import AirflowClient
from mlops_provider.operators.adopted import PARAM, pipeline_of
from mlops_provider.patience import store_errors


class NobodyApprovesError(SpecError):
    """A pipeline judges no experiments, for it may put models into production without anybody's yes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adoption:
    """The run that judges a training. It is the same run whenever, and by whomever, it is asked for."""

    training: str
    """Its place."""
    dag_id: str
    run_id: str

    @classmethod
    def of(cls, place: str, committed: Ref | None) -> Adoption:
        """
        :param committed: what lies at the place
        :raises SpecError: where it is no training of an experiment, or one that is not whole
        """
        dag_id = pipeline_of(place)
        if dag_id is None:
            raise SpecError(f"{place} is the pipeline's own, which its run has judged: see mlops why")
        if not isinstance(committed, CheckpointRef):
            raise SpecError(
                f"{place} is not trained to its end, or was removed: the same experiment, tried out again, goes on "
                "with it"
            )
        _, user, experiment, _, key = place.split("/")
        return cls(training=place, dag_id=dag_id, run_id=f"experiment__{user}__{experiment}__{key}")

    @property
    def conf(self) -> dict[str, str]:
        """What the run is triggered with."""
        return {PARAM: self.training}

    def told(self, dag: Mapping[str, Any]) -> str:
        """For people."""
        waits = f"; it begins when {unpaused}" if (unpaused := unpausing(dag)) else ""
        return (
            f"run {self.run_id} of {self.dag_id} judges {self.training}, and registers it if it passes{waits}\n"
            f"how it goes: mlops why {self.dag_id} {self.run_id}"
        )


def check_approved(dag_id: str, dag: Mapping[str, Any] | None, parameter: str) -> Mapping[str, Any]:
    """
    Check that a DAG judges what it has not trained.

    :param dag: with its parameters, as Airflow's API has it; None where it has none
    :param parameter: of its runs, by which they are asked to
    :return: the DAG
    :raises SpecError: where there is no such DAG
    :raises NobodyApprovesError: where it can put into production what nobody has agreed to
    """
    if dag is None:
        raise SpecError(f"Airflow has no DAG {dag_id!r}: mlops lint says why, or deploy it")
    if parameter not in dag["params"]:
        raise NobodyApprovesError(
            f"{dag_id} takes no experiments, for it can put models into production without anybody's yes: "
            "give it promote.approval, with on_timeout: reject, or put the experiment's settings into its file"
        )
    return dag


def unpausing(dag: Mapping[str, Any]) -> str | None:
    """Return what a run waits for, where somebody has paused its DAG."""
    return f"the DAG is unpaused: airflow dags unpause {dag['dag_id']}" if dag["is_paused"] else None


def is_named(training: str, place: str) -> bool:
    """
    :param training: its place, or the last part of it
    """
    return training in (place, place.rpartition("/")[2])


def adopt(deployment: Deployment, airflow: AirflowClient, training: str) -> tuple[Adoption, str]:
    """
    Start the run.

    :param deployment: whose store holds the experiments
    :param training: its place, or the last part of it, as ``mlops runs list`` shows it
    :return: which run it is, and the same for people
    :raises SpecError: where there is no such training, several, or one that is not whole yet
    :raises SpecError: where Airflow has no DAG of that pipeline, or has such a run already
    """
    with store_errors(deployment.store, "the experiments cannot be read"):
        store = store_of(deployment)
        place = _place(store, training)
        found = Adoption.of(place, asyncio.run(read_committed(store, place)))
        # Until it is judged, `mlops runs expire` leaves it.
        obstore.put(store, used_key(place), b"")
    try:
        dag = airflow.request("GET", f"/dags/{found.dag_id}/details")
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.NOT_FOUND:
            raise
        dag = None
    check_approved(found.dag_id, dag, PARAM)
    if airflow.run(found.dag_id, found.run_id) is not None:
        said = f"was given to the run {found.run_id} of {found.dag_id}: see mlops why {found.dag_id} {found.run_id}"
        raise SpecError(f"{place} {said}")
    airflow.trigger(found.dag_id, found.run_id, None, found.conf)
    return found, found.told(dag)


def _place(store: ObjectStore, training: str) -> str:
    known = list(_trainings(store))
    found = [place for place in known if is_named(training, place) and _is_there(store, place)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SpecError(f"{training} is the name of several trainings; name the place: {', '.join(found)}")
    if night := next((place for place in _nights(store) if is_named(training, place)), None):
        return night
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
