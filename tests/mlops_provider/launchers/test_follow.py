"""Following a Job, of a cluster to which happens what the test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from scripted_api import Asked

from mlops_provider.launchers.kubernetes.api import Api
from mlops_provider.launchers.kubernetes.follow import Followed, Follower
from mlops_provider.launchers.kubernetes.status import Ending

TIMEOUT_SECONDS = 1.0
RUNNING: Mapping[str, Any] = {"running": {}}


def ended(code: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code}}


def pod(
    number: int,
    phase: str,
    state: Mapping[str, Any] | None = None,
    *,
    index: int = 0,
    sidecar: bool = False,
    **status: Any,
) -> dict[str, Any]:
    """:param state: of the step's container"""
    containers = [] if state is None else [{"name": "step", "state": state}]
    containers += [{"name": "istio-proxy", "state": RUNNING}] if sidecar else []
    index_of = {"batch.kubernetes.io/job-completion-index": str(index)}
    return {
        "metadata": {"name": f"step-{index}-{number}", "uid": f"pod-{number}", "annotations": index_of},
        "spec": {"nodeName": "a"},
        "status": {"phase": phase, "containerStatuses": containers} | status,
    }


@dataclass
class Cluster:
    """One Job, and what its API server answers."""

    pods: list[dict[str, Any]]
    conditions: list[str] = field(default_factory=list)
    """Of the Job."""
    size: int = 1
    """Pods of the Job."""
    away: tuple[str, ...] = ()
    """Endings of the paths that are not answered."""
    deleted: list[str] = field(default_factory=list)
    watched: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when somebody watches the pods."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith(self.away):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if request.method == "DELETE":
            self.deleted.append(request.path.rpartition("/")[2])
            return web.json_response({})
        if request.path.endswith("/log"):
            return web.Response(body=b"2024-01-15T00:00:00Z at work\n")
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": self._items(request.path)})
        response = web.StreamResponse()
        await response.prepare(request)
        sent = None
        if request.path.endswith("/pods"):
            self.watched.set()
        while not request.path.endswith(self.away):
            items = self._items(request.path)
            if (now := json.dumps(items)) != sent:
                sent = now
                for item in items:
                    await response.write(json.dumps({"type": "MODIFIED", "object": item}).encode() + b"\n")
            await asyncio.sleep(0.02)
        assert request.transport is not None
        request.transport.abort()
        return response

    def _items(self, path: str) -> list[dict[str, Any]]:
        if path.endswith("/pods"):
            return self.pods
        if not path.endswith("/jobs"):
            return []
        spec = {
            "completions": self.size,
            "parallelism": self.size,
            "template": {"spec": {"terminationGracePeriodSeconds": 0}},
        }
        conditions = [{"type": kind, "status": "True"} for kind in self.conditions]
        return [{"metadata": {"name": "job", "uid": "uid"}, "spec": spec, "status": {"conditions": conditions}}]


Happens = Callable[[], Awaitable[None]]


@pytest.fixture
def follow(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Ending | None, str]]:
    """
    How a Job ended while something happened to its cluster, and the log.

    :return: None for one that is made anew
    """
    for name, seconds in {
        "TICK": 0.05,
        "SUCCEEDED": 0.3,
        "FAILED": 0.3,
        "LOG_END": 0.3,
        "STUCK": TIMEOUT_SECONDS,
        "REPORT": TIMEOUT_SECONDS,
    }.items():
        monkeypatch.setattr(f"mlops_provider.launchers.kubernetes.follow.{name}_SECONDS", seconds)

    def run(cluster: Cluster, happens: Happens, fewest: int = 1) -> tuple[Ending | None, str]:
        lines: list[str] = []
        found: list[Ending | None] = []
        followed = Followed(name="job", uid="uid", place="p", fewest=fewest, start_timeout_seconds=TIMEOUT_SECONDS)

        async def use(api: Api) -> None:
            async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
                tasks.create_task(happens())
                found.append(await Follower(api, followed, lines.append).run())

        asked(cluster.answer, use)
        (ending,) = found
        return ending, "\n".join(lines)

    return run


EVERYTHING = ("",)


async def nothing() -> None:
    pass


def test_a_pod_that_does_not_come_to_run_is_given_up(follow: Any) -> None:
    cluster = Cluster([pod(0, "Pending")])
    ending, _ = follow(cluster, nothing)
    assert not ending.succeeded
    assert "1 of 1 pods did not come to run within 1 s (pods.start_timeout_seconds)" in ending.status
    assert cluster.deleted == ["job"]


@pytest.mark.parametrize("away", [EVERYTHING, ("/pods",)], ids=["all", "pods"])
@pytest.mark.parametrize("seconds", [0.0, 0.6], ids=["meanwhile", "soon after"])
def test_nothing_is_given_up_for_what_could_not_be_seen(follow: Any, seconds: float, away: tuple[str, ...]) -> None:
    """Broken: of a healthy Job, whose pod came to run while the API was away, all is deleted when it is back."""
    cluster = Cluster([pod(0, "Pending")])

    async def outage() -> None:
        await cluster.watched.wait()
        await asyncio.sleep(0.7)
        cluster.away = away
        await asyncio.sleep(3 * TIMEOUT_SECONDS)
        if not seconds:
            cluster.pods = [pod(0, "Running", RUNNING)]
        cluster.away = ()
        await asyncio.sleep(seconds)
        cluster.pods = [pod(0, "Running", RUNNING)]
        await asyncio.sleep(1.5 * TIMEOUT_SECONDS)
        cluster.pods, cluster.conditions = [pod(0, "Succeeded", ended(0))], ["Complete"]

    ending, log = follow(cluster, outage)
    assert ending.succeeded, ending
    assert cluster.deleted == []
    assert log.count("is in trouble, waiting") == log.count("the Kubernetes API answers again") == 1


def test_a_pod_that_was_to_end_before_an_outage_has_its_time_after_it(follow: Any) -> None:
    """Broken: a Job is made anew, and its log lost, for a pod that ended while its node could not say so."""
    leaving = pod(0, "Running", RUNNING)
    leaving["metadata"]["deletionTimestamp"] = "2024-01-15T00:00:00Z"
    cluster = Cluster([leaving])

    async def outage() -> None:
        await cluster.watched.wait()
        await asyncio.sleep(0.5)
        cluster.away = EVERYTHING
        await asyncio.sleep(3 * TIMEOUT_SECONDS)
        cluster.away = ()
        await asyncio.sleep(0.6)
        cluster.pods = [pod(1, "Running", RUNNING)]
        await asyncio.sleep(1.5 * TIMEOUT_SECONDS)
        cluster.pods, cluster.conditions = [pod(1, "Succeeded", ended(0))], ["Complete"]

    ending, log = follow(cluster, outage)
    assert ending.succeeded, ending
    assert "made anew" not in log
    assert cluster.deleted == []


def evicted(number: int, index: int, ran: str = "00:00:40") -> dict[str, Any]:
    """By the kubelet."""
    taken = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "low on disk"}]
    taken[0]["lastTransitionTime"] = f"2024-01-15T{ran}Z"
    begun = "2024-01-15T00:00:00Z"
    return pod(number, "Failed", ended(137), index=index, reason="Evicted", startTime=begun, conditions=taken)


def test_pods_that_nodes_have_no_room_for_are_not_replaced_for_ever(follow: Any) -> None:
    """Broken: for a week each pod fills its node's disk, is evicted, not counted as a failure, and replaced."""
    cluster = Cluster([evicted(number, 0) for number in range(3)])
    ending, log = follow(cluster, nothing)
    assert not ending.succeeded
    assert "3 pods, one after the other, were evicted for what they take of their nodes (pods.memory," in ending.status
    assert "low on disk" in ending.status
    assert "made anew" not in log
    assert (cluster.deleted, ending.failed_nodes) == (["job"], [])


def test_a_pod_that_worked_for_hours_was_not_too_big_for_its_node(follow: Any) -> None:
    """Broken: a training of weeks fails for three neighbours that have filled its nodes, each on another day."""
    cluster = Cluster([evicted(number, 0, "09:00:00") for number in range(3)])
    ending, log = follow(cluster, nothing)
    assert ending is None, "the same try goes on with a new Job"
    assert "is made anew: 3 of its pods were taken away" in log


@pytest.mark.parametrize("indexes", [(0, 1, 2), (3, 3, 3)], ids=["by others", "without it"])
def test_a_gang_that_works_is_not_given_up_for_pods_that_were_evicted(follow: Any, indexes: tuple[int, ...]) -> None:
    """Broken: days of a gang's work end since its neighbours have filled the disks of three of its nodes."""
    alive = [pod(number, "Running", RUNNING, index=number - 10) for number in (10, 11, 12)]
    cluster = Cluster([*(evicted(number, index) for number, index in enumerate(indexes)), *alive], size=4)
    ending, log = follow(cluster, nothing, fewest=2)
    assert ending is None, "the same try goes on with a new Job"
    assert "is made anew: 3 of its pods were taken away" in log


@pytest.mark.parametrize("code", [0, 70])
def test_a_step_ends_while_a_sidecar_of_its_pod_runs(follow: Any, code: int) -> None:
    """Broken: what is done, or has failed, is waited for until pods.start_timeout_seconds, and then called not run."""
    cluster = Cluster([pod(0, "Running", RUNNING, sidecar=True)])

    async def end() -> None:
        await cluster.watched.wait()
        cluster.pods = [pod(0, "Running", ended(code), sidecar=True)]

    ending, log = follow(cluster, end)
    assert ending.succeeded is (code == 0), ending
    assert "did not come to run" not in ending.status
    if code:
        assert "exit code 70 and its pod does not end while istio-proxy runs: make that a native" in ending.status
    assert "at work" in log
    assert cluster.deleted == ["job"], "the sidecar goes with it"


@pytest.mark.parametrize(("code", "goes_on"), [(137, True), (1, False)], ids=["killed", "said what failed"])
def test_a_gang_goes_on_without_a_pod_whose_sidecar_runs(follow: Any, code: int, goes_on: bool) -> None:
    """Broken: an elastic gang that has lost one of four is ended, though two would do."""
    others = [pod(number, "Running", RUNNING, index=number, sidecar=True) for number in (0, 1, 2)]
    cluster = Cluster([*others, pod(3, "Running", ended(code), index=3, sidecar=True)], size=4)

    async def end() -> None:
        await cluster.watched.wait()
        await asyncio.sleep(1.5 * TIMEOUT_SECONDS)
        cluster.conditions = ["Complete"]

    ending, _ = follow(cluster, end, fewest=2)
    assert ending.succeeded is goes_on, ending


def test_who_is_told_to_stop_while_something_changes_stops(asked: Asked) -> None:
    """Broken: Airflow tells a trigger once that its task was given up, and the Job runs on for ever."""
    cluster = Cluster([pod(0, "Running", RUNNING)])

    async def use(api: Api) -> None:
        followed = Followed(name="job", uid="uid", place="p", fewest=1, start_timeout_seconds=TIMEOUT_SECONDS)
        follower = Follower(api, followed, lambda line: None)
        following = asyncio.create_task(follower.run())
        await cluster.watched.wait()
        await asyncio.sleep(0.5)
        follower._changed.set()
        following.cancel("given up")
        done, _ = await asyncio.wait([following], timeout=10)
        assert done, "it follows on"
        with pytest.raises(asyncio.CancelledError, match="given up"):
            await following

    asked(cluster.answer, use)
