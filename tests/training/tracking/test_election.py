"""Processes that open one run at the same moment, slowed down between their requests at random."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from mlflow import MlflowClient
from tracking_server import Server

from mlops.tracking.election import ELECTION, find_or_create
from mlops.tracking.opening import Opening, OpenRun, open_on_server
from mlops.tracking.rest import Rest

PROCESSES = 4


class SlowRest(Rest):
    """A connection whose process stands still for a moment before a request, and whose clock is wrong."""

    def __init__(self, uri: str, seed: int) -> None:
        super().__init__(uri)
        self._chance = random.Random(seed)
        self._clock_is_off_ms = self._chance.randrange(-5, 6)

    def post(self, path: str, body: Any) -> dict[str, Any]:
        if path == "runs/create":
            body = {**body, "start_time": body["start_time"] + self._clock_is_off_ms}
        return super().post(path, body)

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        time.sleep(self._chance.choice([0, 0, 0.005, 0.02]))
        return super()._call(method, path, **arguments)


def _opening(name: str, leads: bool = True) -> Opening:
    return Opening(experiment=name, run_key="key", name="n", params={}, tags={}, leads=leads)


def _metric(name: str) -> bytes:
    return b'{"key": "%s", "value": 1.0, "timestamp": 1, "step": 1}' % name.encode()


@pytest.mark.server
@pytest.mark.parametrize("seed", range(12))
def test_whoever_opens_a_run_keeps_it_and_its_metrics(server: Server, client: MlflowClient, seed: int) -> None:
    """Broken: a process whose clock is behind takes the run away from another one, with the metrics that it had."""
    name = f"opened at once {seed}"

    def work(number: int) -> OpenRun:
        run = open_on_server(SlowRest(server.uri, 100 * seed + number), _opening(name, leads=number == 0))
        run.log(_metric(f"of_{number}"))
        return run

    with ThreadPoolExecutor(PROCESSES) as pool:
        opened = list(pool.map(work, range(PROCESSES)))
    (run,) = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    assert {each.run_id for each in opened} == {run.info.run_id}
    assert run.data.metrics.keys() == {f"of_{number}" for number in range(PROCESSES)}


@pytest.mark.server
def test_a_run_made_late_by_a_clock_that_is_behind_is_the_surplus(server: Server, client: MlflowClient) -> None:
    """Broken: of two leaders, the one that hung while it made its run deletes the run of the other, which has begun."""
    name, rest = "late", Rest(server.uri)
    first = open_on_server(rest, _opening(name))
    first.log(_metric("loss"))
    tags = [{"key": "mlops.run_key", "value": "key"}]
    experiment = client.get_experiment_by_name(name).experiment_id
    late = {"experiment_id": experiment, "run_name": "late", "tags": tags, "start_time": 1}
    rest.post("runs/create", late)
    assert open_on_server(rest, _opening(name)).run_id == first.run_id
    (run,) = client.search_runs([experiment])
    assert (run.info.run_id, run.data.metrics) == (first.run_id, {"loss": 1.0})


@pytest.mark.server
@pytest.mark.parametrize("votes", [[None], [None, None], ["surplus"], ["surplus", None], ["surplus", "kept", None]])
def test_what_a_killed_process_left_is_settled_by_the_next(
    server: Server, client: MlflowClient, votes: list[str | None], request: pytest.FixtureRequest
) -> None:
    """Broken: a process that is killed between two of its votes leaves a work that nobody can track any more."""
    rest, name = Rest(server.uri), request.node.name
    experiment = client.create_experiment(name)
    made = []
    for number, vote in enumerate(votes):
        run = client.create_run(experiment, start_time=1 + number, tags={"mlops.run_key": "key"})
        made.append(run.info.run_id)
        if vote is not None:
            client.log_param(made[-1], ELECTION, vote)
    found = find_or_create(rest, experiment, run_key="key", name="n")
    (run,) = client.search_runs([experiment])
    assert run.info.run_id == found
    expected = made[votes.index("kept")] if "kept" in votes else made[votes.index(None)] if None in votes else None
    assert (found == expected) if expected else (found not in made)


@pytest.mark.server
def test_a_run_that_a_person_deleted_is_made_anew(server: Server, client: MlflowClient) -> None:
    """Broken: a training whose run was deleted by mistake can never be tracked again."""
    rest, name = Rest(server.uri), "deleted"
    first = open_on_server(rest, _opening(name)).run_id
    client.delete_run(first)
    assert open_on_server(rest, _opening(name)).run_id != first
