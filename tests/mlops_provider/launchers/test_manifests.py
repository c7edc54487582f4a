"""The objects that a step is on Kubernetes, held against the API's own schema."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from project import REPOSITORY, make_project

from mlops.contract.section import SpecError, check_section
from mlops_provider.launchers.kubernetes.manifests import StepJob, Task, merge
from mlops_provider.pod_spec import Pods, merged, platform_pods
from mlops_provider.testing.launchers import launch

VERSION = "1.34"
EVERYTHING = {
    "image": "example.com/training:1",
    "image_pull_policy": "IfNotPresent",
    "image_pull_secrets": ["registry"],
    "cpu": 1.5,
    "memory": "8Gi",
    "ephemeral_storage": "20Gi",
    "gpus": 2,
    "gpu_type": "NVIDIA-H100",
    "node_selector": {"pool": "spot"},
    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}},
    "service_account": "training",
    "env": {"NCCL_DEBUG": "INFO"},
    "env_from_secrets": ["store"],
    "env_from_config_maps": ["proxy"],
    "volumes": [
        {"mount_path": "/data", "claim": "data"},
        {"mount_path": "/keys", "secret": "keys"},
        {"mount_path": "/settings", "config_map": "settings"},
        {"mount_path": "/models", "host_path": "/models", "read_only": False},
    ],
    "labels": {"team": "search"},
    "annotations": {"example.com/cost": "42"},
    "priority_class": "production",
    "queue": "search",
    "queue_priority": "high",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("project") / "home")


def step_job(home: Path, pods: Mapping[str, Any] | None = None, **changes: Any) -> StepJob:
    request = launch(home, "pass", "plain")
    gang = {name: changes.pop(name) for name in ("processes", "nodes", "environment") if name in changes}
    return StepJob(
        task=Task(deployment="tests", dag_id="events", run_id="manual__2024-01-15", task_id="train"),
        launch=dataclasses.replace(request, **gang),
        pods=check_section(Pods, pods or {}, "pods"),
        image="training:1",
        namespace="mlops",
        store="s3://models/mlops",
        tracking_uri="http://mlflow:5000",
        deadline_seconds=3600.0,
        suffix="a1b2c3",
        **changes,
    )


def pod_of(job: StepJob) -> dict[str, Any]:
    spec: dict[str, Any] = job.job()["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize(
    ("pods", "changes"),
    [
        pytest.param({}, {}, id="a plain step"),
        pytest.param({}, {"processes": 2, "nodes": "2:4", "environment": {"MLOPS_CONNECTION_DB": "x"}}, id="a gang"),
        pytest.param(EVERYTHING, {"processes": 1, "nodes": "2", "avoided_nodes": ["bad-1"]}, id="every setting"),
    ],
)
def test_kubernetes_takes_them(home: Path, pods: dict[str, Any], changes: dict[str, Any]) -> None:
    """Unknown fields and wrong types included: the API would refuse the Job at night."""
    job = step_job(home, pods, **changes)
    for manifest in (job.job(), *job.owned("a-uid")):
        kubernetes_validate.validate(json.loads(json.dumps(manifest)), VERSION, strict=True)


def test_a_job_is_named_after_its_task_whatever_the_try(home: Path) -> None:
    long = "a_dag_with_quite_a_long_name_indeed"
    first = Task(deployment="tests", dag_id=long, run_id="scheduled__2024-01-15", task_id="train__x")
    assert first.job_name == dataclasses.replace(first).job_name
    changes = ({"run_id": "x"}, {"map_index": 1}, {"task_id": "y"}, {"deployment": "z"})
    others = [dataclasses.replace(first, **change) for change in changes]
    assert len({first.job_name, *(other.job_name for other in others)}) == 5
    assert len(first.job_name) <= 54, "pods add their index, and what the Job owns a suffix"
    kubernetes_validate.validate(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": first.job_name}}, VERSION, strict=True
    )


def test_secrets_are_in_the_secret_only(home: Path) -> None:
    job = step_job(home, environment={"MLOPS_CONNECTION_DB": "open sesame"})
    assert "sesame" not in json.dumps(job.job()) + repr(job)
    secret, _ = job.owned("a-uid")
    assert base64.b64decode(secret["data"]["MLOPS_CONNECTION_DB"]) == b"open sesame"
    assert base64.b64decode(secret["data"]["input.json"]).decode() == job.launch.input.dump()


def test_nothing_can_be_left_without_an_owner(home: Path) -> None:
    for manifest in step_job(home).owned("a-uid"):
        assert [owner["uid"] for owner in manifest["metadata"]["ownerReferences"]] == ["a-uid"]


def test_pods_have_no_rights_that_they_do_not_need(home: Path) -> None:
    pod = pod_of(step_job(home))
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_nodes_that_failed_are_the_last_choice(home: Path) -> None:
    """Forbidden, they could leave no node at all."""
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    required = {"nodeSelectorTerms": terms}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    pod = pod_of(step_job(home, {"affinity": affinity}, avoided_nodes=["worse", "bad"]))
    found = pod["affinity"]["nodeAffinity"]
    assert found["requiredDuringSchedulingIgnoredDuringExecution"] == required
    (preferred,) = found["preferredDuringSchedulingIgnoredDuringExecution"]
    # Kubernetes takes one value for each.
    assert preferred["preference"]["matchFields"] == [
        {"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("bad", "worse")
    ]


def test_pods_leave_a_dead_node_sooner_unless_the_pipeline_says_when(home: Path) -> None:
    key = "node.kubernetes.io/unreachable"
    own = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600}
    for given, expected in (([], 30), ([own], 3600)):
        (found,) = (
            each for each in pod_of(step_job(home, {"tolerations": given}))["tolerations"] if each["key"] == key
        )
        assert found["tolerationSeconds"] == expected


def test_a_template_goes_before_the_settings(home: Path) -> None:
    template = yaml.safe_load("""
metadata: {labels: {team: search}}
spec:
  terminationGracePeriodSeconds: 7
  containers:
    - {name: proxy, image: "proxy:1"}
    - name: step
      command: [sleep]
      args: ["1"]
      env: [{name: OMP_NUM_THREADS, value: "4"}]
      resources: {requests: {cpu: "3"}}
""")
    job = step_job(home, {"memory": "5Gi"}, template=template)
    kubernetes_validate.validate(json.loads(json.dumps(job.job())), VERSION, strict=True)
    pod = pod_of(job)
    proxy, step = pod["containers"]
    assert (proxy["name"], pod["terminationGracePeriodSeconds"]) == ("proxy", 7)
    assert step["command"][:3] == ["python", "-m", "mlops.container"], "what runs is not the template's to say"
    assert step["args"] == []
    assert step["resources"]["requests"] == {"cpu": "3", "memory": "5Gi"}
    assert {"name": "OMP_NUM_THREADS", "value": "4"} in step["env"]
    assert {"name": "MLFLOW_TRACKING_URI", "value": "http://mlflow:5000"} in step["env"]
    assert job.job()["spec"]["template"]["metadata"]["labels"]["team"] == "search"


def test_lists_without_names_are_joined() -> None:
    assert merge({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}], "x": 1}) == {
        "tolerations": [{"key": "a"}, {"key": "b"}],
        "x": 1,
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": "4 GB"}, "memory must be a quantity such as 500m, 2, 4Gi, got '4 GB'"),
        ({"gpu": 1}, "unknown key 'gpu'; did you mean 'gpus'?"),
        ({"queue": "Team A"}, "queue must be a Kubernetes name"),
        ({"volumes": [{"mount_path": "data", "claim": "x"}]}, "volumes.0.mount_path must be an absolute path"),
        ({"volumes": [{"mount_path": "/x"}]}, "volumes.0 must be a volume of one kind"),
    ],
)
def test_a_mistake_is_said_when_the_dag_is_parsed(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        check_section(Pods, settings, "task 'train': pods")
    assert f"task 'train': pods: {message}" in str(error.value)


def test_the_nearest_place_decides(tmp_path: Path) -> None:
    defaults = tmp_path / "pods.yaml"
    defaults.write_text("all: {cpu: 1, env: {A: x, B: x}}\ntrain: {cpu: 2, memory: 4Gi}\n")
    pods = merged(platform_pods(defaults, "train"), {"memory": "8Gi", "env": {"B": "y"}})
    assert pods == {"cpu": 2, "memory": "8Gi", "env": {"A": "x", "B": "y"}}
    assert platform_pods(defaults, "ingest")["cpu"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("trian: {cpu: 1}", "unknown key 'trian'"),
        ("all: {cpus: 1}", "did you mean 'cpu'"),
        ("- 1", "must hold a mapping"),
        ("all: [", "pod_defaults"),
    ],
)
def test_a_mistake_in_the_platforms_file_names_it(tmp_path: Path, content: str, message: str) -> None:
    defaults = tmp_path / "pods.yaml"
    defaults.write_text(content)
    with pytest.raises(SpecError, match=message):
        platform_pods(defaults, "train")


def test_the_platforms_file_of_this_repository_is_sound() -> None:
    file = REPOSITORY / "include/kubernetes/pod_defaults.yaml"
    assert check_section(Pods, platform_pods(file, "train"), "pods").memory == "8Gi"
