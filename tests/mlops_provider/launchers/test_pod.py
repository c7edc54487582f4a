"""Steps as pods: of the stand-in's cluster, or of a real one (see ``pod_cluster``)."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faulty_proxy import faulty_proxy
from kubernetes import client
from pod_cluster import NAMESPACE, PodCluster, pod_cluster, visible_folder
from project import make_project
from turns import on_turn

from mlops.contract.refs import DatasetRef
from mlops.contract.section import SpecError
from mlops.contract.step import Failure
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import Launch, Outcome
from mlops_provider.launchers.kubernetes.api import ApiError
from mlops_provider.launchers.kubernetes.follow import Followed
from mlops_provider.launchers.kubernetes.job import PodTask
from mlops_provider.launchers.kubernetes.manifests import LOGGED_UNTIL, Task
from mlops_provider.launchers.kubernetes.trigger import REFUSED, JobTrigger
from mlops_provider.launchers.pod import PodLauncher
from mlops_provider.pod_spec import Pods
from mlops_provider.testing.launchers import LauncherConformance, launch

NewLauncher = Callable[..., PodLauncher]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with visible_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def home(folder: Path) -> Path:
    (folder / "store").mkdir()
    return make_project(folder / "home")


@pytest.fixture(scope="module")
def cluster(folder: Path, home: Path) -> Iterator[PodCluster]:
    with pod_cluster(folder / "cluster", home) as cluster:
        yield cluster


@pytest.fixture
def new_launcher(cluster: PodCluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewLauncher]:
    """Of one task instance, each time: its tries."""
    # The client reads the variable once, when it is imported.
    monkeypatch.setattr("kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(cluster.kubeconfig))
    assert cluster.objects() == [], "the cluster answers, and nothing is in it"
    run_id = uuid.uuid4().hex

    def new(task_id: str = "ingest", **settings: Any) -> PodLauncher:
        task = Task(deployment="tests", dag_id="events", run_id=run_id, task_id=task_id)
        pods = Pods.model_validate(cluster.pods(writable=[folder / "home", folder / "store"]) | settings)
        return PodLauncher(cluster.deployment(folder / "store"), PodTask(task=task, pods=pods))

    yield new
    left = cluster.wait_until_empty()
    cluster.clear()  # the tests after this one are not to blame
    assert left == [], "something was left behind"


@pytest.fixture
def launcher(new_launcher: NewLauncher) -> PodLauncher:
    return new_launcher()


class TestPodLauncher(LauncherConformance):
    pass


def run(launcher: PodLauncher, request: Launch) -> tuple[Outcome, str]:
    """How it ended, and the log."""
    lines: list[str] = []
    outcome = launcher.run(request, lines.append)
    return outcome, "\n".join(lines)


def started(launcher: PodLauncher, request: Launch, say: Callable[[str], None] = print) -> Followed:
    """The step's Job, which nobody follows yet."""
    return asyncio.run(launcher.pod_task.job(launcher.deployment).start(request, say))


@contextmanager
def followed(launcher: PodLauncher, request: Launch, words: str) -> Iterator[Background]:
    """The step, run in the background, from when its log says some words; at the end it is waited for."""
    background = Background()
    thread = threading.Thread(target=lambda: background.run(launcher, request))
    thread.start()

    def said() -> bool:
        return any(words in line for line in background.lines)

    try:
        wait_for(lambda: said() or not thread.is_alive(), f"it does not say {words}")
        assert said(), background.lines
    except AssertionError:
        launcher.cancel()
        raise
    yield background
    thread.join(120)
    assert not thread.is_alive(), background.lines


class Background:
    """A step that runs beside the test: its log, and in the end its outcome."""

    outcome: Outcome

    def __init__(self) -> None:
        self.lines: list[str] = []

    def run(self, launcher: PodLauncher, request: Launch) -> None:
        self.outcome = launcher.run(request, self.lines.append)


def wait_for(holds: Callable[[], Any], what: str, timeout_seconds: float = 300) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_an_image_that_is_not_there(new_launcher: NewLauncher, cluster: PodCluster, home: Path) -> None:
    patience = cluster.patience_seconds / 7
    launcher = new_launcher(image="nowhere.example.com/none:1", start_timeout_seconds=patience)
    outcome, log = run(launcher, launch(home, "pass", "no_image"))
    assert outcome.result is None
    assert "start_timeout_seconds" in outcome.status
    assert "ImagePull" in outcome.status
    assert len([line for line in log.splitlines() if "nowhere.example.com" in line]) <= 2, "once, not at each look"


def test_a_job_that_kubernetes_refuses_says_why(new_launcher: NewLauncher, home: Path) -> None:
    with pytest.raises(SpecError, match=r"look at pods and its template: .*422.*search team"):
        new_launcher(labels={"team": "search team"}).run(launch(home, "pass", "refused"), print)


def test_no_node_has_room(new_launcher: NewLauncher, home: Path) -> None:
    launcher = new_launcher(gpus=64, start_timeout_seconds=3)
    outcome, log = run(launcher, launch(home, "pass", "no_room"))
    assert outcome.result is None
    assert "Insufficient nvidia.com/gpu" in outcome.status
    assert log.count("Insufficient nvidia.com/gpu") == 1


@on_turn(1, 2)
def test_a_job_waits_in_its_queue_and_says_where(
    new_launcher: NewLauncher, cluster: PodCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pods of a gang or none, and nobody wonders why nothing happens."""
    if cluster.queue is None:
        pytest.skip("MLOPS_TEST_QUEUE names no LocalQueue with room for two pods")
    monkeypatch.setattr("mlops_provider.launchers.kubernetes.follow.HINT_SECONDS", 0.5)
    first, second, third = (new_launcher(name, queue=cluster.queue) for name in ("first", "second", "third"))
    place = f"[kubernetes] waiting for admission to queue {cluster.queue}"
    work = "import time; print('at work'); time.sleep(300)"
    with (
        followed(first, dataclasses.replace(launch(home, work, "first"), processes=1, nodes="2"), "at work"),
        followed(
            second, dataclasses.replace(launch(home, work, "second"), processes=1, nodes="2"), f"{place}: the next"
        ),
        followed(third, launch(home, "pass", "third"), f"{place}: 1 ahead of it") as last,
    ):
        assert len(cluster.running()) == 2
        second.cancel()
        wait_for(lambda: f"{place}: the next one" in last.lines, "it does not move up")
        first.cancel()
    assert isinstance(last.outcome.result, DatasetRef)
    assert last.lines.count(f"{place}: 1 ahead of it") == 1, "once, not at each look"


def test_out_of_memory_says_so(new_launcher: NewLauncher, home: Path) -> None:
    statement = "import time; block = b'x' * (700 << 20); time.sleep(60)"
    outcome, _ = run(new_launcher(memory="400Mi"), launch(home, statement, "hungry"))
    assert outcome.result is None
    assert "OOMKilled" in outcome.status
    assert "pods.memory" in outcome.status


def test_a_job_that_is_started_twice_is_one_job(new_launcher: NewLauncher, cluster: PodCluster, home: Path) -> None:
    """A retry after the worker was lost would otherwise train beside the first try."""
    request = launch(home, "import time; time.sleep(3)", "twice")
    lines: list[str] = []
    first, second = (started(new_launcher(), request, lines.append) for _ in range(2))
    assert first == second
    assert "following it" in lines[-1]
    assert len(cluster.batch.list_namespaced_job(NAMESPACE).items) == 1
    outcome, _ = run(new_launcher(), request)
    assert isinstance(outcome.result, DatasetRef)


def test_a_job_that_ended_unseen_is_read_and_not_run_again(
    new_launcher: NewLauncher, cluster: PodCluster, home: Path
) -> None:
    (home / "runs").mkdir(exist_ok=True)
    note = f"import pathlib, uuid; (pathlib.Path({str(home)!r}) / 'runs' / uuid.uuid4().hex).touch(); 1 / 0"
    request = launch(home, note, "unseen")
    followed = started(new_launcher(), request)

    def ended() -> bool:
        job = cluster.batch.read_namespaced_job(followed.name, NAMESPACE)
        return any(condition.type == "Failed" for condition in job.status.conditions or [])

    wait_for(ended, "the Job did not fail")
    outcome, _ = run(new_launcher(), request)
    assert isinstance(outcome.result, Failure)
    assert "division by zero" in outcome.result.message
    assert len(list((home / "runs").iterdir())) == 1


def test_the_logs_of_a_gang_that_ended_unseen_are_read(
    new_launcher: NewLauncher, cluster: PodCluster, home: Path
) -> None:
    """Broken: the pod that ends last goes with its log, before another triggerer takes over from one that was lost."""
    # Whoever begins when the other has committed does nothing. The process ends a while after its rank has.
    (home / "ranks").mkdir(exist_ok=True)
    statement = (
        "import atexit, os, pathlib, time; rank = os.environ['RANK']; print('it is', 40 + int(rank)); "
        f"ranks = pathlib.Path({str(home)!r}) / 'ranks'; (ranks / rank).touch()\n"
        "    while len(list(ranks.iterdir())) < 2: time.sleep(0.05)\n"
        "    atexit.register(time.sleep, 3 * int(rank))"
    )
    request = dataclasses.replace(launch(home, statement, "unseen_gang"), processes=1, nodes="2")
    followed = started(new_launcher(), request)

    def ended() -> bool:
        job = cluster.batch.read_namespaced_job(followed.name, NAMESPACE)
        return any(condition.type == "Complete" for condition in job.status.conditions or [])

    wait_for(ended, "the Job is not complete")
    outcome, log = run(new_launcher(), request)
    assert isinstance(outcome.result, DatasetRef)
    assert "it is 40" in log, log
    assert "it is 41" in log, log


def test_a_job_with_other_work_is_replaced(new_launcher: NewLauncher, home: Path) -> None:
    """A task that was cleared after its code had changed."""
    started(new_launcher(), launch(home, "import time; time.sleep(300)", "before"))
    outcome, log = run(new_launcher(), launch(home, "pass", "after"))
    assert isinstance(outcome.result, DatasetRef)
    assert outcome.result.place.endswith("-after")
    assert "does other work" in log


def test_a_trigger_runs_the_step_without_knowing_secrets(
    new_launcher: NewLauncher, cluster: PodCluster, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow keeps a trigger's arguments, and shows them."""
    deployment = new_launcher().deployment
    monkeypatch.setattr(Deployment, "load", lambda team: deployment)
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "postgres://trainer:s3cret@db.example/shop")

    def event(name: str, statement: str, **settings: Any) -> dict[str, Any]:
        pods = Pods.model_validate(cluster.pods(writable=[folder / "store"]) | settings)
        task = Task(deployment="tests", dag_id="events", run_id=uuid.uuid4().hex, task_id=name)
        launcher = PodLauncher(deployment, PodTask(task=task, pods=pods))
        trigger = launcher.trigger(launch(home, statement, name), {"ingest.sources.orders.connection": "shop"})
        kept = json.dumps(trigger.serialize()[1])
        assert "s3cret" not in kept
        return first_event(JobTrigger(**json.loads(kept)))

    ended = event("triggered", "import os; assert 's3cret' in os.environ['MLOPS_CONNECTION_SHOP']")
    assert isinstance(PodLauncher.finish(ended, deployment).result, DatasetRef)
    refused = event("refused", "pass", labels={"team": "search team"})
    with pytest.raises(SpecError, match="look at pods and its template"):
        PodLauncher.finish(refused, deployment)


def first_event(trigger: JobTrigger) -> dict[str, Any]:
    async def first() -> Any:
        return await anext(trigger.run())

    payload: dict[str, Any] = asyncio.run(first()).payload
    return payload


def test_a_trigger_of_another_release_refuses_and_leaves_the_triggerer_alone(home: Path) -> None:
    """An error in its making would end the triggerer, with all that it follows, at each start."""
    task = {"deployment": "tests", "dag_id": "events", "run_id": "x", "task_id": "ingest"}
    pod_task = {"task": task, "pods": {"gone": 1}, "deadline_seconds": None, "avoided_nodes": []}
    refused = first_event(JobTrigger(pod_task, launch(home, "pass", "old").to_json(), {}))
    assert "gone" in refused[REFUSED]


def test_another_triggerer_follows_a_job_whose_connection_is_gone(
    new_launcher: NewLauncher, cluster: PodCluster, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of hours of work: only to make a Job the password is needed."""
    deployment = new_launcher().deployment
    monkeypatch.setattr(Deployment, "load", lambda team: deployment)
    request = launch(home, "import time; time.sleep(2)", "handed_over")
    pods = Pods.model_validate(cluster.pods(writable=[folder / "store"]))
    task = PodTask(task=Task(deployment="tests", dag_id="events", run_id=uuid.uuid4().hex, task_id="x"), pods=pods)
    started(PodLauncher(deployment, task), request)
    ended = first_event(JobTrigger(task.to_json(), request.to_json(), {"ingest.sources.orders.connection": "nowhere"}))
    assert isinstance(PodLauncher.finish(ended, deployment).result, DatasetRef)


@pytest.mark.parametrize("ends", ["SIG_DFL", "SIG_IGN"], ids=["in time", "beyond its grace period"])
def test_an_evicted_pod_is_replaced_and_said(
    new_launcher: NewLauncher, cluster: PodCluster, home: Path, ends: str
) -> None:
    statement = (
        f"import signal, time; signal.signal(signal.SIGTERM, signal.{ends}); print('at work', flush=True); "
        "time.sleep(6)"
    )
    request = launch(home, statement, f"evicted_{ends.lower()}")
    with followed(new_launcher(grace_seconds=1), request, "at work") as step:
        (pod,) = cluster.running()
        cluster.evict(pod)
    assert isinstance(step.outcome.result, DatasetRef)
    assert [line for line in step.lines if pod in line and "was taken away" in line]
    assert step.lines.count("at work") == 2


def test_a_job_whose_pods_are_taken_away_again_and_again_is_made_anew(
    new_launcher: NewLauncher, cluster: PodCluster, home: Path
) -> None:
    """The cluster would wait ten minutes for each in the end, and all of a gang's other pods with it."""
    request = launch(home, "import time; print('at work'); time.sleep(5)", "again_and_again")
    with followed(new_launcher(), request, "at work") as step:
        for number in range(1, 4):
            wait_for(lambda: step.lines.count("at work") >= number, "it does not go on")  # noqa: B023
            (pod,) = cluster.running()
            cluster.evict(pod)
    assert isinstance(step.outcome.result, DatasetRef)
    assert len([line for line in step.lines if "is made anew: 3 of its pods" in line]) == 1
    assert len([line for line in step.lines if "started Job" in line]) == 2
    assert step.lines.count("at work") == 4


def test_a_job_with_a_pod_that_does_not_end_is_made_anew(
    new_launcher: NewLauncher, cluster: PodCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a node that lost its network: the cluster would wait for it, and the task with the cluster."""
    monkeypatch.setattr("mlops_provider.launchers.kubernetes.follow.STUCK_SECONDS", -2.0)
    monkeypatch.setattr("mlops_provider.launchers.kubernetes.follow.TICK_SECONDS", 0.2)
    statement = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('at work'); time.sleep(6)"
    with followed(new_launcher(grace_seconds=4), launch(home, statement, "stuck"), "at work") as step:
        (pod,) = cluster.running()
        cluster.evict(pod)
    assert isinstance(step.outcome.result, DatasetRef)
    assert [line for line in step.lines if f"is made anew: {pod} on " in line]
    assert len([line for line in step.lines if "started Job" in line]) == 2


@on_turn(0, 2)
def test_a_gang_without_its_first_pod_does_not_wait_for_ever(
    new_launcher: NewLauncher, cluster: PodCluster, home: Path
) -> None:
    """It holds the rendezvous: the others can do nothing, and keep their GPUs."""
    request = launch(home, "import time; print('at work'); time.sleep(300)", "headless")
    gang = dataclasses.replace(request, processes=1, nodes="1:2")
    with cluster.no_new_pods() as cordon, followed(new_launcher(start_timeout_seconds=6), gang, "at work") as step:
        wait_for(lambda: len(cluster.running()) == 2, "both pods run")
        cordon()
        cluster.evict(next(pod for pod in cluster.running() if "-0-" in pod))
    assert step.outcome.result is None
    assert "start_timeout_seconds" in step.outcome.status
    assert "unschedulable" in step.outcome.status


def test_the_first_rank_that_fails_is_named_and_all_pods_end(
    new_launcher: NewLauncher, cluster: PodCluster, home: Path
) -> None:
    statement = (
        "import os, time; "
        # The other rank would outlast the test.
        "time.sleep(100_000 if os.environ['RANK'] == '0' else 1); "
        "raise ValueError('the seventh shard is empty')"
    )
    request = dataclasses.replace(launch(home, statement, "raising"), processes=1, nodes="2", max_restarts=0)
    outcome, log = run(new_launcher(), request)
    assert isinstance(outcome.result, Failure)
    assert "the seventh shard is empty" in outcome.result.message
    assert "rank 1" in outcome.result.message
    assert "/1" in outcome.result.message, "the node is named"
    assert log.count("[kubernetes] started Job") == 1


@on_turn(1, 2)
def test_an_api_server_in_trouble_costs_nothing(
    new_launcher: NewLauncher, cluster: PodCluster, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute of errors, overload, silence and cut connections while a step is started, followed and read."""
    statement = "import time; [(print('line', number), time.sleep(0.5)) for number in range(150)]"
    with faulty_proxy(cluster.kubeconfig, folder) as proxy:
        place = "kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
        monkeypatch.setattr(place, str(proxy.kubeconfig))
        monkeypatch.setattr("mlops_provider.launchers.kubernetes.api._CALL_SECONDS", 1.0)
        proxy.fault = "500"
        threading.Timer(1.0, lambda: setattr(proxy, "fault", "")).start()
        with followed(new_launcher(), launch(home, statement, "troubled"), "line 0") as step:
            begin = time.monotonic()
            for fault in itertools.cycle(("429", "", "silence", "", "refuse", "500", "")):
                proxy.fault = fault
                proxy.cut()
                time.sleep(1.5 if fault else 0.5)
                if time.monotonic() - begin > 60:
                    break
            proxy.fault = ""
    assert isinstance(step.outcome.result, DatasetRef)
    assert [line for line in step.lines if line.startswith("line ")] == [f"line {number}" for number in range(150)]
    assert len([line for line in step.lines if "started Job" in line]) == 1
    assert [line for line in step.lines if "is in trouble" in line], "people are told"


def test_a_deleted_job_is_lost(new_launcher: NewLauncher, cluster: PodCluster, home: Path) -> None:
    request = launch(home, "import time; print('at work'); time.sleep(300)", "deleted")
    with followed(new_launcher(), request, "at work") as step:
        (job,) = cluster.batch.list_namespaced_job(NAMESPACE).items
        options = client.V1DeleteOptions(propagation_policy="Background")
        cluster.batch.delete_namespaced_job(job.metadata.name, NAMESPACE, body=options)
    assert step.outcome.result is None
    assert "was deleted" in step.outcome.status


def test_a_deadline_ends_the_step_in_the_cluster(
    new_launcher: NewLauncher, cluster: PodCluster, folder: Path, home: Path
) -> None:
    """Also where Airflow is gone."""
    outcome, _ = run(new_launcher(max_hours=3 / 3600), launch(home, "import time; time.sleep(300)", "slow"))
    assert outcome.result is None
    assert "DeadlineExceeded" in outcome.status


@on_turn(1, 2)
def test_a_step_is_followed_to_its_end_without_what_is_only_nice_to_know(
    new_launcher: NewLauncher, cluster: PodCluster, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: logs stop and the end is not seen for hours while Kueue's visibility server, or a webhook, is away."""
    if cluster.queue is None:
        pytest.skip("MLOPS_TEST_QUEUE names no LocalQueue with room for two pods")
    for name, seconds in {"HINT_SECONDS": 0.5, "NOTE_SECONDS": 0.5, "TICK_SECONDS": 0.2}.items():
        monkeypatch.setattr(f"mlops_provider.launchers.kubernetes.follow.{name}", seconds)

    def refuses(method: str, path: str, body: bytes) -> tuple[int, str, str] | None:
        if path.endswith("/pendingworkloads"):
            return 503, "ServiceUnavailable", "the server is currently unable to handle the request"
        is_note = method == "PATCH" and LOGGED_UNTIL.encode() in body
        return (500, "InternalError", "failed calling webhook") if is_note or path.endswith("/events") else None

    first, second = (new_launcher(name, queue=cluster.queue) for name in ("first", "second"))
    work = "import time; print('at work'); time.sleep(300)"
    with faulty_proxy(cluster.kubeconfig, folder) as proxy:
        proxy.refuses = refuses
        place = "kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
        monkeypatch.setattr(place, str(proxy.kubeconfig))
        with followed(first, dataclasses.replace(launch(home, work, "holding"), processes=1, nodes="2"), "at work"):
            unread = "[kubernetes] the place in the queue cannot be read"
            statement = "import time; [(print('line', number), time.sleep(0.5)) for number in range(8)]"
            with followed(second, launch(home, statement, "behind"), unread) as step:
                first.cancel()
                wait_for(lambda: "line 7" in step.lines, "its log stops", 60)
                begin = time.monotonic()
            assert time.monotonic() - begin < 60, "its end is seen late"
    assert isinstance(step.outcome.result, DatasetRef)
    assert len([line for line in step.lines if line.startswith(unread)]) == 1


def test_a_full_quota_is_waited_for(
    new_launcher: NewLauncher, cluster: PodCluster, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: steps that start together use up their tries where their namespace has room for some of them only."""
    monkeypatch.setattr("mlops_provider.launchers.kubernetes.job._QUOTA_POLL_SECONDS", 0.2)
    full = 403, "Forbidden", 'jobs.batch "step" is forbidden: exceeded quota: team, requested: 1, used: 9, limited: 9'
    left = {"jobs": [full, full], "secrets": [full], "services": [full]}

    def refuses(method: str, path: str, body: bytes) -> tuple[int, str, str] | None:
        refusals = left.get(path.rpartition("/")[2], [])
        return refusals.pop() if method == "POST" and refusals else None

    with faulty_proxy(cluster.kubeconfig, folder) as proxy:
        proxy.refuses = refuses
        place = "kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
        monkeypatch.setattr(place, str(proxy.kubeconfig))
        outcome, log = run(new_launcher(), launch(home, "pass", "crowded"))
        assert isinstance(outcome.result, DatasetRef)
        assert log.count("waiting for room in a quota") == 3, log
        assert log.count("started Job") == 1
        assert not any(left.values())
        left["secrets"] = [full] * 1000
        with pytest.raises(ApiError, match="exceeded quota"):
            run(new_launcher(start_timeout_seconds=1), launch(home, "pass", "crowded_out"))
