"""The stand-in cluster, through the same clients that the provider and the launcher use."""

from __future__ import annotations

import base64
import json
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

from cluster import Cluster, Image, Node, running_cluster
from cluster.running import can_run

pytestmark = pytest.mark.skipif(not can_run(), reason="needs root on Linux, to make namespaces and mounts")

IMAGES = {"tools:1": Image(env={"FLAVOUR": "plain"}), "wrong:1": Image(user=0)}
NODES = [
    Node(name="cpu-0", cpu="4", memory="8Gi"),
    Node(name="cpu-1", cpu="4", memory="8Gi"),
    Node(
        name="gpu-0",
        cpu="8",
        gpus=2,
        labels={"gpu": "h200"},
        taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
    ),
]
EASY = {"terminationGracePeriodSeconds": 1, "restartPolicy": "Never"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    options = {"job_backoff_seconds": 0.1, "crash_backoff_seconds": 0.3, "pull_backoff_seconds": 0.5}
    with running_cluster(tmp_path_factory.mktemp("cluster"), images=IMAGES, nodes=NODES, **options) as cluster:
        config.load_kube_config(str(cluster.kubeconfig))
        yield cluster


@pytest.fixture
def core(cluster: Cluster) -> client.CoreV1Api:
    return client.CoreV1Api()


@pytest.fixture
def batch(cluster: Cluster) -> client.BatchV1Api:
    return client.BatchV1Api()


@pytest.fixture
def space(core: client.CoreV1Api, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own; nothing of it is left behind."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:60].strip("-")
    core.create_namespace({"metadata": {"name": name}, "apiVersion": "v1", "kind": "Namespace"})
    yield name
    core.delete_namespace(name)
    until(lambda: name not in [each.metadata.name for each in core.list_namespace().items])


def until(check: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait until a check holds; what it returned."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return found


def pod_of(name: str, script: str, *, container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "tools:1", "command": ["sh", "-c", script]} | (container or {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": EASY | {"containers": [main]} | spec}


def job_of(name: str, script: str, *, pod: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "tools:1", "command": ["/usr/bin/python3", "-c", script]}
    template = {"metadata": {"labels": {"app": name}}, "spec": EASY | {"containers": [container]} | (pod or {})}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec | {"template": template}}


def phase(core: client.CoreV1Api, space: str, name: str) -> str:
    return str(core.read_namespaced_pod(name, space).status.phase)


def ended(core: client.CoreV1Api, space: str, name: str) -> Any:
    """The state of the only container, once the pod has ended."""
    until(lambda: phase(core, space, name) in ("Succeeded", "Failed"))
    return core.read_namespaced_pod(name, space).status.container_statuses[0].state.terminated


def condition(value: Any, kind: str) -> Any:
    return next((each for each in value.status.conditions or [] if each.type == kind and each.status == "True"), None)


def job_ended(batch: client.BatchV1Api, space: str, name: str, kind: str) -> Any:
    until(lambda: condition(batch.read_namespaced_job(name, space), kind))
    return batch.read_namespaced_job(name, space)


def reasons(core: client.CoreV1Api, space: str, name: str) -> dict[str, str]:
    found = core.list_namespaced_event(space, field_selector=f"involvedObject.name={name}").items
    return {event.reason: event.message for event in found}


def test_a_pod_runs_apart_and_its_log_follows(core: client.CoreV1Api, space: str, cluster: Cluster) -> None:
    script = "hostname; echo $FLAVOUR $NODE; ls /tmp; touch /tmp/here /made-in-a-pod; sleep 0.5; echo late;"
    script += "echo told > /dev/termination-log"
    node = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    core.create_namespaced_pod(
        space, pod_of("apart", script, container={"env": [node]}, nodeSelector={"kubernetes.io/hostname": "cpu-1"})
    )
    until(lambda: phase(core, space, "apart") == "Running")
    stream = core.read_namespaced_pod_log("apart", space, follow=True, timestamps=True, _preload_content=False)
    lines = [line.decode().rstrip("\n") for line in stream]
    assert [line.partition(" ")[2] for line in lines] == ["apart", "plain cpu-1", "late"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z .*", line) for line in lines)
    state = ended(core, space, "apart")
    assert (state.exit_code, state.reason, state.message) == (0, "Completed", "told\n")
    assert core.read_namespaced_pod_log("apart", space, tail_lines=1, _preload_content=False).data == b"late\n"
    assert not Path("/made-in-a-pod").exists()
    assert {"Scheduled", "Pulled", "Created", "Started"} <= set(reasons(core, space, "apart"))


def test_deleting_gives_the_first_process_its_grace(core: client.CoreV1Api, space: str) -> None:
    script = "trap 'echo asked; sleep 0.3; exit 7' TERM; echo up; while :; do sleep 0.1; done"
    core.create_namespaced_pod(space, pod_of("slow", script, terminationGracePeriodSeconds=20))
    until(lambda: phase(core, space, "slow") == "Running" and b"up" in _log(core, space, "slow"))
    seen: list[tuple[str, str, int | None]] = []
    start = int(core.list_namespaced_pod(space).metadata.resource_version)
    core.delete_namespaced_pod("slow", space)
    for event in watch.Watch().stream(core.list_namespaced_pod, space, resource_version=start, timeout_seconds=10):
        status = event["object"].status
        ending = status.container_statuses[0].state.terminated
        seen.append((event["type"], status.phase, ending and ending.exit_code))
        if event["type"] == "DELETED":
            break
    assert seen[-2:] == [("MODIFIED", "Failed", 7), ("DELETED", "Failed", 7)]


def test_a_deaf_process_is_killed_when_the_grace_is_over(core: client.CoreV1Api, space: str) -> None:
    core.create_namespaced_pod(space, pod_of("deaf", "trap '' TERM; sleep 60"))
    until(lambda: phase(core, space, "deaf") == "Running")
    start = time.monotonic()
    core.delete_namespaced_pod("deaf", space)
    until(lambda: not core.list_namespaced_pod(space).items)
    assert time.monotonic() - start > 0.9


def _log(core: client.CoreV1Api, space: str, name: str) -> bytes:
    answer: bytes = core.read_namespaced_pod_log(name, space, _preload_content=False).data
    return answer


def test_a_pod_waits_for_its_secrets(core: client.CoreV1Api, space: str) -> None:
    source = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "late", "key": "token"}}}
    core.create_namespaced_pod(space, pod_of("by-env", "echo $TOKEN", container={"env": [source]}))
    mount = {"volumeMounts": [{"name": "files", "mountPath": "/run/secrets/late"}]}
    volume = {"name": "files", "secret": {"secretName": "late"}}
    core.create_namespaced_pod(
        space, pod_of("by-file", "cat /run/secrets/late/token", container=mount, volumes=[volume])
    )

    def waiting(name: str) -> str:
        statuses = core.read_namespaced_pod(name, space).status.container_statuses or []
        return statuses[0].state.waiting.reason if statuses and statuses[0].state.waiting else ""

    until(lambda: waiting("by-env") == "CreateContainerConfigError")
    until(lambda: "FailedMount" in reasons(core, space, "by-file"))
    assert waiting("by-file") == "ContainerCreating"
    assert (
        reasons(core, space, "by-file")["FailedMount"]
        == 'MountVolume.SetUp failed for volume "files" : secret "late" not found'
    )
    with pytest.raises(ApiException) as refused:
        core.read_namespaced_pod_log("by-env", space)
    assert refused.value.status == 400
    assert 'container \\"main\\" in pod \\"by-env\\" is waiting to start: CreateContainerConfigError' in str(
        refused.value.body
    )
    data = {"token": base64.b64encode(b"s3cret").decode()}
    core.create_namespaced_secret(
        space, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "late"}, "data": data}
    )
    for name in ("by-env", "by-file"):
        ended(core, space, name)
        assert b"s3cret" in _log(core, space, name)


def test_volumes_and_a_read_only_root(core: client.CoreV1Api, space: str, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    script = "touch /x /tmp/x; echo $?; echo a > /scratch/a && echo b > /data/b && "
    script += "df --output=size -B1M /dev/shm /scratch | tail -2"
    mounts = [{"name": "scratch", "mountPath": "/scratch"}, {"name": "data", "mountPath": "/data"}]
    container = {"volumeMounts": mounts, "securityContext": {"readOnlyRootFilesystem": True}}
    volumes = [{"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}]
    volumes += [{"name": "data", "hostPath": {"path": str(tmp_path / "shared"), "type": "Directory"}}]
    core.create_namespaced_pod(space, pod_of("tight", script, container=container, volumes=volumes))
    assert ended(core, space, "tight").exit_code == 0
    log = _log(core, space, "tight").decode()
    assert log.count("Read-only file system") == 2
    assert log.split()[-3:] == ["1", "64", "8"]
    assert (tmp_path / "shared" / "b").read_text() == "b\n"
    assert not Path("/scratch").exists()


def test_the_pods_of_an_indexed_job_find_each_other(
    core: client.CoreV1Api, batch: client.BatchV1Api, space: str
) -> None:
    service = {"clusterIP": "None", "selector": {"job-name": "pair"}, "publishNotReadyAddresses": True}
    core.create_namespaced_service(
        space, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "pair"}, "spec": service}
    )
    script = """
import os, socket, time
index = int(os.environ["JOB_COMPLETION_INDEX"])
assert socket.gethostname() == f"pair-{index}"
if index == 0:
    server = socket.create_server((socket.gethostbyname(socket.gethostname()), 29511))
    peer, (address, _) = server.accept()
    print(peer.recv(100).decode())
else:
    for attempt in range(200):
        try:
            peer = socket.create_connection(("pair-0.pair", 29511), timeout=5)
            break
        except OSError:
            time.sleep(0.05)
    peer.sendall(b"found")
"""
    job = job_of("pair", script, pod={"subdomain": "pair"}, completionMode="Indexed", completions=2, parallelism=2)
    batch.create_namespaced_job(space, job)
    status = job_ended(batch, space, "pair", "Complete").status
    assert (status.succeeded, status.completed_indexes, status.failed) == (2, "0,1", None)
    names = [pod.metadata.name for pod in core.list_namespaced_pod(space, label_selector="job-name=pair").items]
    assert all(re.fullmatch(rf"pair-{index}-[a-z0-9]{{5}}", name) for index, name in enumerate(names))
    assert b"found" in _log(core, space, names[0])


def test_the_failure_policy_fails_the_job(core: client.CoreV1Api, batch: client.BatchV1Api, space: str) -> None:
    rules = [{"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [65]}}]
    script = "import os, sys, time; sys.exit(65) if os.environ['JOB_COMPLETION_INDEX'] == '1' else time.sleep(60)"
    spec: dict[str, Any] = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 6}
    batch.create_namespaced_job(space, job_of("strict", script, podFailurePolicy={"rules": rules}, **spec))
    job = job_ended(batch, space, "strict", "Failed")
    failed = condition(job, "Failed")
    pattern = (
        rf"Container main for pod {space}/strict-1-\w{{5}} failed with exit code 65 matching FailJob rule at index 0"
    )
    assert failed.reason == "PodFailurePolicy"
    assert re.fullmatch(pattern, failed.message)
    assert job.status.active is None


def test_a_job_gives_up_at_its_backoff_limit(core: client.CoreV1Api, batch: client.BatchV1Api, space: str) -> None:
    batch.create_namespaced_job(space, job_of("hopeless", "raise SystemExit(1)", backoffLimit=1))
    job = job_ended(batch, space, "hopeless", "Failed")
    assert (condition(job, "Failed").reason, job.status.failed) == ("BackoffLimitExceeded", 2)


def test_the_success_policy_ends_the_others(core: client.CoreV1Api, batch: client.BatchV1Api, space: str) -> None:
    script = "import os, time; time.sleep(0 if os.environ['JOB_COMPLETION_INDEX'] == '0' else 60)"
    policy = {"rules": [{"succeededIndexes": "0"}]}
    spec: dict[str, Any] = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "successPolicy": policy}
    batch.create_namespaced_job(space, job_of("leader", script, **spec))
    job = job_ended(batch, space, "leader", "Complete")
    assert condition(job, "SuccessCriteriaMet").reason == "SuccessPolicy"
    assert (job.status.succeeded, job.status.completed_indexes) == (1, "0")


def test_an_evicted_pod_is_replaced_and_not_counted(
    core: client.CoreV1Api, batch: client.BatchV1Api, space: str
) -> None:
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    script = "import os, time; time.sleep(0.2 if os.path.exists('/flag/second') else 60)"
    batch.create_namespaced_job(space, job_of("moved", script, podFailurePolicy={"rules": rules}, backoffLimit=0))
    first = until(lambda: [p for p in core.list_namespaced_pod(space).items if p.status.phase == "Running"])[
        0
    ].metadata.name
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": first, "namespace": space}}
    core.create_namespaced_pod_eviction(first, space, eviction)
    second = until(lambda: [p for p in core.list_namespaced_pod(space).items if p.metadata.name != first])[0]
    until(lambda: phase(core, space, second.metadata.name) == "Running")
    status = batch.read_namespaced_job("moved", space).status
    assert (status.active, status.failed, status.conditions) == (1, None, None)
    batch.delete_namespaced_job("moved", space, propagation_policy="Foreground")
    until(lambda: not core.list_namespaced_pod(space).items and not batch.list_namespaced_job(space).items)


def test_a_suspended_job_has_no_pods_until_it_is_resumed(
    core: client.CoreV1Api, batch: client.BatchV1Api, space: str
) -> None:
    batch.create_namespaced_job(space, job_of("queued", "pass", suspend=True))
    until(lambda: condition(batch.read_namespaced_job("queued", space), "Suspended"))
    assert not core.list_namespaced_pod(space).items
    batch.patch_namespaced_job("queued", space, {"spec": {"suspend": False}})
    job_ended(batch, space, "queued", "Complete")


def test_an_index_has_its_own_backoff_limit(batch: client.BatchV1Api, space: str) -> None:
    script = "import os, sys; sys.exit(os.environ['JOB_COMPLETION_INDEX'] == '1')"
    spec: dict[str, Any] = {"completionMode": "Indexed", "completions": 3, "parallelism": 3, "backoffLimitPerIndex": 1}
    batch.create_namespaced_job(space, job_of("apart", script, **spec))
    job = job_ended(batch, space, "apart", "Failed")
    assert condition(job, "Failed").reason == "FailedIndexes"
    assert (job.status.completed_indexes, job.status.failed_indexes, job.status.failed) == ("0,2", "1", 2)


def test_a_job_ends_at_its_deadline_and_goes_after_its_time(
    core: client.CoreV1Api, batch: client.BatchV1Api, space: str
) -> None:
    job = job_of("late", "import time; time.sleep(60)", activeDeadlineSeconds=1, ttlSecondsAfterFinished=1)
    start = batch.list_namespaced_job(space).metadata.resource_version
    batch.create_namespaced_job(space, job)
    # Watched, not asked for: on a busy machine it is gone before the next look.
    seen = watch.Watch().stream(batch.list_namespaced_job, space, resource_version=start, timeout_seconds=120)
    failed = next(found for event in seen if (found := condition(event["object"], "Failed")))
    assert failed.reason == "DeadlineExceeded"
    until(lambda: not batch.list_namespaced_job(space).items and not core.list_namespaced_pod(space).items)


def test_a_jobs_pods_stay_unless_the_deletion_says_otherwise(
    core: client.CoreV1Api, batch: client.BatchV1Api, space: str
) -> None:
    batch.create_namespaced_job(space, job_of("left", "import time; time.sleep(60)"))
    until(lambda: core.list_namespaced_pod(space).items)
    batch.delete_namespaced_job("left", space)
    until(lambda: not batch.list_namespaced_job(space).items)
    pods = core.list_namespaced_pod(space).items
    assert len(pods) == 1
    assert not pods[0].metadata.owner_references


def test_init_containers_run_first_and_sidecars_beside(core: client.CoreV1Api, space: str) -> None:
    mount = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    beside = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    first = {
        "name": "first",
        "image": "tools:1",
        "command": ["sh", "-c", "sleep 0.3; echo ready > /shared/file"],
    } | mount
    sidecar = {"name": "beside", "image": "tools:1", "restartPolicy": "Always", "command": ["sh", "-c", beside]}
    spec: dict[str, Any] = {
        "initContainers": [first, sidecar],
        "volumes": [{"name": "shared", "emptyDir": {}}],
        "terminationGracePeriodSeconds": 30,
    }
    core.create_namespaced_pod(space, pod_of("steps", "sleep 0.5; cat /shared/file", container=mount, **spec))
    assert ended(core, space, "steps").exit_code == 0
    assert _log(core, space, "steps") == b"ready\n"

    def exit_codes() -> list[int | None]:
        statuses = core.read_namespaced_pod("steps", space).status.init_container_statuses
        return [each.state.terminated and each.state.terminated.exit_code for each in statuses]

    until(lambda: None not in exit_codes())  # the sidecar ends after the others
    assert exit_codes() == [0, 0]


def test_memory_beyond_the_limit_is_the_end(core: client.CoreV1Api, space: str) -> None:
    container = {
        "command": ["/usr/bin/python3", "-c", "import time; held = b'x' * (200 << 20); time.sleep(60)"],
        "resources": {"limits": {"memory": "64Mi"}},
    }
    core.create_namespaced_pod(space, pod_of("greedy", "", container=container))
    state = ended(core, space, "greedy")
    assert (state.reason, state.exit_code) == ("OOMKilled", 137)


def test_an_unschedulable_pod_says_why(core: client.CoreV1Api, space: str) -> None:
    container = {"resources": {"limits": {"nvidia.com/gpu": 4}}}
    toleration = {"key": "gpu", "operator": "Exists"}
    core.create_namespaced_pod(space, pod_of("large", "true", container=container, tolerations=[toleration]))
    text = until(lambda: reasons(core, space, "large").get("FailedScheduling"))
    assert text.startswith("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    scheduled = core.read_namespaced_pod("large", space).status.conditions[0]
    assert (scheduled.type, scheduled.status, scheduled.reason) == ("PodScheduled", "False", "Unschedulable")
    core.create_node(Node(name="gpu-9", gpus=8).object())
    try:
        ended(core, space, "large")
    finally:
        core.delete_node("gpu-9")


def test_an_unknown_image_is_not_pulled(core: client.CoreV1Api, space: str) -> None:
    core.create_namespaced_pod(space, pod_of("typo", "true", container={"image": "tols:1"}))
    seen: set[str] = set()

    def waits() -> bool:
        for status in core.read_namespaced_pod("typo", space).status.container_statuses or []:
            seen.add(status.state.waiting.reason)
        return {"ErrImagePull", "ImagePullBackOff"} <= seen

    until(waits)
    assert {"Failed", "BackOff"} <= set(reasons(core, space, "typo"))


def test_restarts_in_place(core: client.CoreV1Api, space: str) -> None:
    volume = {"name": "state", "emptyDir": {}}
    script = "echo try >> /state/tries; wc -l < /state/tries; [ $(wc -l < /state/tries) -ge 3 ]"
    container = {"volumeMounts": [{"name": "state", "mountPath": "/state"}]}
    core.create_namespaced_pod(
        space, pod_of("stubborn", script, container=container, volumes=[volume], restartPolicy="OnFailure")
    )
    assert ended(core, space, "stubborn").exit_code == 0
    status = core.read_namespaced_pod("stubborn", space).status.container_statuses[0]
    assert (status.restart_count, status.last_state.terminated.exit_code) == (2, 1)
    assert core.read_namespaced_pod_log("stubborn", space, previous=True, _preload_content=False).data == b"2\n"


def test_what_belongs_to_a_deleted_object_goes_with_it(core: client.CoreV1Api, space: str) -> None:
    core.create_namespaced_pod(space, pod_of("owner", "sleep 60"))
    owner = core.read_namespaced_pod("owner", space)
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": owner.metadata.uid}
    metadata = {"name": "owned", "ownerReferences": [reference]}
    core.create_namespaced_config_map(
        space, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}
    )
    with pytest.raises(ApiException) as refused:
        core.delete_namespaced_pod("owner", space, body={"preconditions": {"uid": "another"}})
    assert refused.value.status == 409
    core.delete_namespaced_pod("owner", space, grace_period_seconds=0)
    until(lambda: not core.list_namespaced_config_map(space).items)


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"nodeSelektor": {}}, 400, 'unknown field \\"spec.nodeSelektor\\"'),
        ({"containers": [{"name": "A", "image": "tools:1"}]}, 422, "spec.containers[0].name"),
        ({"activeDeadlineSeconds": "60"}, 400, "spec.activeDeadlineSeconds"),
        ({"serviceAccountName": "nobody"}, 403, "serviceaccount"),
        ({"volumes": [{"name": "v", "projected": {"sources": []}}]}, 400, "does not support volumes[].projected"),
    ],
    ids=["unknown field", "bad name", "wrong type", "missing account", "unsupported"],
)
def test_a_wrong_pod_is_refused(
    core: client.CoreV1Api, space: str, change: dict[str, Any], code: int, text: str
) -> None:
    with pytest.raises(ApiException) as refused:
        core.create_namespaced_pod(space, pod_of("wrong", "true", **change))
    assert refused.value.status == code
    assert text in str(refused.value.body)


def test_conflicts_and_missing_objects_have_their_codes(core: client.CoreV1Api, space: str, cluster: Cluster) -> None:
    made = core.create_namespaced_config_map(
        space, {"metadata": {"name": "one"}, "apiVersion": "v1", "kind": "ConfigMap"}
    )
    core.patch_namespaced_config_map("one", space, {"data": {"a": "1"}})
    made.data = {"a": "2"}
    for call, code in (
        (lambda: core.replace_namespaced_config_map("one", space, made), 409),
        (
            lambda: core.create_namespaced_config_map(
                space, {"metadata": {"name": "one"}, "apiVersion": "v1", "kind": "ConfigMap"}
            ),
            409,
        ),
        (lambda: core.read_namespaced_config_map("two", space), 404),
        (lambda: core.create_namespaced_pod("nowhere", pod_of("a", "true")), 404),
    ):
        with pytest.raises(ApiException) as refused:
            call()
        assert refused.value.status == code
    with pytest.raises(urllib.error.HTTPError) as unknown:
        urllib.request.urlopen(f"{cluster.server}/api/v1/pods")
    assert unknown.value.code == 401


def test_a_watch_lasts_until_its_time_and_selects(core: client.CoreV1Api, space: str) -> None:
    start = time.monotonic()

    def create() -> None:
        for name in ("a", "b"):
            core.create_namespaced_pod(
                space, pod_of(name, "true") | {"metadata": {"name": name, "labels": {"n": name}}}
            )

    timer = threading.Timer(0.3, create)
    timer.start()
    selector = "n in (b,c),!gone,n!=c"
    found = list(watch.Watch().stream(core.list_namespaced_pod, space, label_selector=selector, timeout_seconds=2))
    timer.join()
    assert time.monotonic() - start > 1.9
    assert {event["object"].metadata.name for event in found} == {"b"}
    assert found[0]["type"] == "ADDED"


def test_clients_that_go_away_end_nothing(core: client.CoreV1Api, space: str, cluster: Cluster) -> None:
    """Broken: a follower that ends while it asks takes the cluster with it, and all later tests wait for the API."""
    chance = random.Random(1)
    pods = f"/api/v1/namespaces/{space}/pods"
    secret = json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"generateName": "left-"}})
    head = "HTTP/1.1\r\nHost: stand-in\r\nAuthorization: Bearer test\r\nContent-Type: application/json\r\n"
    requests = [
        f"GET {pods} {head}\r\n",
        f"GET {pods}?watch=true&timeoutSeconds=240 {head}\r\n",
        f"POST /api/v1/namespaces/{space}/secrets {head}Content-Length: {len(secret)}\r\n\r\n{secret}",
    ]
    for _ in range(1500):
        request = chance.choice(requests).encode()
        with socket.create_connection(("127.0.0.1", cluster.port)) as connection:
            connection.sendall(request if chance.random() < 0.6 else request[: chance.randrange(len(request))])
            time.sleep(chance.choice([0.0, 0.0003, 0.001]))
            if chance.random() < 0.5:  # reset, not closed
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert core.list_namespaced_pod(space).items == []


def test_a_lost_node_takes_its_pods_and_the_job_replaces_them(
    core: client.CoreV1Api, batch: client.BatchV1Api, space: str
) -> None:
    core.create_node(Node(name="doomed", labels={"pool": "spot"}).object())
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    pod = {"nodeSelector": {"pool": "spot"}, "terminationGracePeriodSeconds": 60}
    job = job_of("spot", "import time; time.sleep(60)", pod=pod, podFailurePolicy={"rules": rules}, backoffLimit=0)
    batch.create_namespaced_job(space, job)
    until(lambda: [p for p in core.list_namespaced_pod(space).items if p.status.phase == "Running"])
    start = core.list_namespaced_pod(space).metadata.resource_version
    core.delete_node("doomed")
    for event in watch.Watch().stream(core.list_namespaced_pod, space, resource_version=start, timeout_seconds=10):
        if event["type"] == "DELETED":
            break
    assert condition(event["object"], "DisruptionTarget").reason == "DeletionByPodGC"
    until(lambda: [p for p in core.list_namespaced_pod(space).items if p.status.phase == "Pending"])
    assert batch.read_namespaced_job("spot", space).status.failed is None


def test_the_providers_own_operator_runs_here(
    core: client.CoreV1Api, space: str, cluster: Cluster, airflow_environment: dict[str, str]
) -> None:
    """Airflow's KubernetesPodOperator: in the task, failing, and deferred with its trigger."""
    program = Path(__file__).with_name("operator_program.py")
    command = [sys.executable, "-P", str(program), str(cluster.kubeconfig), space]
    done = subprocess.run(command, env=airflow_environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failure"] == "AirflowException"
    assert found["trigger"][1] == "success"
    for line in ("from-the-pod", "waited-for"):
        assert line in done.stdout
    assert [pod.metadata.labels["task_id"] for pod in core.list_namespaced_pod(space).items] == ["bad"]
