"""
The three objects of a step on Kubernetes, as plain JSON: an indexed Job, and what it owns, a Secret with the input
document and a headless Service by which the pods of a gang find each other.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mlops.contract.sections.train import node_range
from mlops.contract.step import ATTEMPT_VARIABLE, FAILED, GRACE_VARIABLE, INTERRUPTED, STEPS, STORE_VARIABLE
from mlops_provider.launchers.base import Launch, step_argv, threads
from mlops_provider.pod_spec import Pods, PodVolume

CONTAINER: Final = "step"
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "mlops"}
COMPONENT: Final = {"app.kubernetes.io/component": "training-step"}
MLFLOW: Final = {"mlops/mlflow": "true"}
"""Label of pods whose step asks MLflow: include/kubernetes/20-network.yaml lets no others reach it."""
DEPLOYMENT: Final = "mlops/deployment"
"""Label of all that belongs to one Airflow."""
RUN_KEY, LOGGED_UNTIL, SUFFIX, WHOLE = "mlops/run-key", "mlops/logged-until", "mlops/suffix", "mlops/whole"
"""Annotations of a Job: the work it does, up to where its logs were handed on, the end of the names of what it owns
(what an earlier Job of this name owned may not be gone yet), and that all of that is there."""
QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Label of a Job that Kueue admits."""
DAG_ID, RUN_ID, TASK_ID, MAP_INDEX = "mlops/dag-id", "mlops/run-id", "mlops/task-id", "mlops/map-index"
"""Annotations of a Job: the task instance it belongs to."""
_INPUT_FOLDER: Final = "/run/mlops"
_DOCUMENT: Final = "input.json"
_PORT: Final = 29400
"""Port of the rendezvous; torchrun's own default."""
_DEAD_NODE_SECONDS: Final = 30
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
# The workers write their last checkpoint, then torchrun says how they ended, then the first process does.
_GRACE_MARGIN_SECONDS: Final = 2.0


def deployment_id(store: str) -> str:
    """Return the id of the Airflow that keeps its runs in that store; a label's value."""
    return hashlib.sha256(store.encode()).hexdigest()[:10]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """The task instance that a Job belongs to, whatever its try."""

    deployment: str
    """Which Airflow's: others may share the namespace. See :func:`deployment_id`."""
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def job_name(self) -> str:
        """The same at each try, and short: the names of pods and hosts are longer, and have at most 63 characters."""
        identity = (self.deployment, self.dag_id, self.run_id, self.task_id, self.map_index)
        digest = hashlib.sha256(repr(identity).encode()).hexdigest()
        words = re.sub(r"[^a-z0-9]+", "-", f"{self.dag_id[:24]}-{self.task_id[:12]}".lower()).strip("-")
        return f"mlops-{words}-{digest[:10]}".replace("--", "-")

    @property
    def annotations(self) -> dict[str, str]:
        return {DAG_ID: self.dag_id, RUN_ID: self.run_id, TASK_ID: self.task_id, MAP_INDEX: str(self.map_index)}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepJob:
    """One step to run as a Job."""

    task: Task
    launch: Launch
    pods: Pods
    image: str
    namespace: str
    store: str
    tracking_uri: str
    deadline_seconds: float
    """After which the cluster ends it."""
    suffix: str
    """Suffix of the names of what the Job owns."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Pod manifest of the user's, or empty."""
    avoided_nodes: Sequence[str] = ()

    @property
    def name(self) -> str:
        return self.task.job_name

    @property
    def owned_name(self) -> str:
        """Return the name of the Secret and the Service."""
        return f"{self.name}-{self.suffix}"

    @property
    def nodes(self) -> tuple[int, int]:
        """Fewest and most pods."""
        return node_range(self.launch.nodes)

    @property
    def labels(self) -> dict[str, str]:
        ours = MANAGED_BY | COMPONENT | {DEPLOYMENT: self.task.deployment}
        if STEPS[self.launch.input.step].login is not None:
            ours |= MLFLOW
        return self.pods.labels | ours | _label("mlops/pipeline", self.launch.input.run.pipeline)

    def job(self) -> dict[str, Any]:
        pods, (fewest, most) = self.pods, self.nodes
        labels = self.labels
        if pods.queue:
            labels[QUEUE] = pods.queue
        if pods.queue_priority:
            labels["kueue.x-k8s.io/priority-class"] = pods.queue_priority
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": labels,
                "annotations": self.task.annotations | {RUN_KEY: self.launch.input.run.run_key, SUFFIX: self.suffix},
            },
            "spec": {
                # Until what it owns is there; with a queue until Kueue admits it.
                "suspend": True,
                "completionMode": "Indexed",
                "completions": most,
                "parallelism": most,
                # The first one to succeed has it all committed. But what then still runs goes with its log, which
                # nobody may have read.
                "successPolicy": {"rules": [{"succeededCount": fewest}]},
                # A single pod's successor would be a task's next try, which Airflow counts and shows.
                "backoffLimit": pods.max_pod_failures if most > 1 else 0,
                "podFailurePolicy": {
                    "rules": [
                        # Preempted, drained, evicted: replaced, and not counted.
                        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                        # It said what failed: no other pod can mend it.
                        {"action": "FailJob", "onExitCodes": _exit_code(FAILED)},
                        # Asked to end, e.g. by a person who deletes the pod.
                        {"action": "Ignore", "onExitCodes": _exit_code(INTERRUPTED)},
                    ]
                },
                "activeDeadlineSeconds": max(1, int(self.deadline_seconds)),
                "ttlSecondsAfterFinished": pods.keep_seconds,
                "template": merge(dict(self.template), self._pod()),
            },
        }

    def owned(self, uid: str) -> Sequence[dict[str, Any]]:
        """
        The Secret and the Service of the Job with that uid. They go when it goes.

        Made after the Job, so that nothing can be left without an owner.
        """
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.name, "uid": uid, "controller": True}
        metadata = {
            "name": self.owned_name,
            "namespace": self.namespace,
            "labels": self.labels,
            "ownerReferences": [owner | {"blockOwnerDeletion": False}],
        }
        entries = {_DOCUMENT: self.launch.input.dump()} | dict(self.launch.environment)
        return (
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": metadata,
                "type": "Opaque",
                "data": {name: base64.b64encode(value.encode()).decode() for name, value in entries.items()},
            },
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": metadata,
                "spec": {
                    "clusterIP": "None",
                    "publishNotReadyAddresses": True,
                    "selector": {"batch.kubernetes.io/controller-uid": uid},
                    "ports": [{"name": "rendezvous", "port": _PORT, "targetPort": _PORT}],
                },
            },
        )

    def _pod(self) -> dict[str, Any]:
        pods = self.pods
        volumes: list[tuple[str, str, bool, dict[str, Any]]] = [
            (
                "mlops-input",
                _INPUT_FOLDER,
                True,
                {"secret": {"secretName": self.owned_name, "items": [_item(_DOCUMENT)]}},
            ),
            ("mlops-shm", "/dev/shm", False, {"emptyDir": {"medium": "Memory", "sizeLimit": pods.shared_memory}}),  # noqa: S108
            ("mlops-tmp", "/tmp", False, {"emptyDir": {"sizeLimit": pods.scratch}}),  # noqa: S108
            *(
                (f"volume-{number}", volume.mount_path, volume.read_only, _source(volume))
                for number, volume in enumerate(pods.volumes)
            ),
        ]
        selector = dict(pods.node_selector)
        if pods.gpu_type:
            selector["nvidia.com/gpu.product"] = pods.gpu_type
        spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "subdomain": self.owned_name,
            "terminationGracePeriodSeconds": pods.grace_seconds,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": pods.run_as_user,
                "runAsGroup": pods.run_as_user,
                "fsGroup": pods.run_as_user,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [self._container([(name, path, read_only) for name, path, read_only, _ in volumes])],
            "volumes": [{"name": name} | source for name, _, _, source in volumes],
            "nodeSelector": selector,
            "tolerations": [*pods.tolerations, *_leaving_dead_nodes(pods.tolerations)],
            "affinity": _avoiding(pods.affinity, self.avoided_nodes) if self.avoided_nodes else pods.affinity,
            "imagePullSecrets": [{"name": name} for name in pods.image_pull_secrets],
            "serviceAccountName": pods.service_account,
            "priorityClassName": pods.priority_class,
        }
        return {
            "metadata": {"labels": self.labels, "annotations": pods.annotations},
            "spec": {name: value for name, value in spec.items() if value not in (None, {}, [])},
        }

    def _container(self, mounts: Sequence[tuple[str, str, bool]]) -> dict[str, Any]:
        pods = self.pods
        requests = {"cpu": pods.cpu, "memory": pods.memory}
        limits = {"memory": pods.memory}
        if pods.ephemeral_storage:
            requests["ephemeral-storage"] = pods.ephemeral_storage
        if pods.gpus:
            requests[pods.gpu_resource] = limits[pods.gpu_resource] = str(pods.gpus)
        container = {
            "name": CONTAINER,
            "image": self.image,
            "imagePullPolicy": pods.image_pull_policy,
            "command": ["python", "-m", "mlops.container", *self._command()],
            "args": [],  # a template's would follow the command
            "env": self._variables(),
            "envFrom": [
                *({"configMapRef": {"name": name}} for name in pods.env_from_config_maps),
                *({"secretRef": {"name": name}} for name in pods.env_from_secrets),
            ],
            "volumeMounts": [
                {"name": name, "mountPath": path, "readOnly": read_only} for name, path, read_only in mounts
            ],
            "resources": {"requests": requests, "limits": limits},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        return {name: value for name, value in container.items() if value is not None}

    def _command(self) -> list[str]:
        launch = self.launch
        meeting = []
        if self.nodes[1] > 1:
            meeting = [
                f"--rdzv-endpoint={self.name}-0.{self.owned_name}:{_PORT}",
                f"--rdzv-id=$({ATTEMPT_VARIABLE})",
                "--local-addr=$(MLOPS_POD_IP)",
                "--node-name=$(MLOPS_NODE)/$(JOB_COMPLETION_INDEX)",
                f"--join-seconds={self.pods.start_timeout_seconds:g}",
            ]
        return step_argv(
            "python",
            f"{_INPUT_FOLDER}/{_DOCUMENT}",
            launch.processes,
            nodes=launch.nodes,
            max_restarts=launch.max_restarts,
            hang_seconds=launch.hang_seconds,
            meeting=meeting,
        )

    def _variables(self) -> list[dict[str, Any]]:
        given = {
            STORE_VARIABLE: self.store,
            "MLFLOW_TRACKING_URI": self.tracking_uri,
            GRACE_VARIABLE: str(max(0.5, self.pods.grace_seconds - _GRACE_MARGIN_SECONDS)),
            "HOME": "/tmp",  # noqa: S108
            **threads(self.launch.processes, self.launch.nodes),
            **self.pods.env,
        }
        seen = {
            ATTEMPT_VARIABLE: "metadata.labels['batch.kubernetes.io/controller-uid']",
            "MLOPS_POD_IP": "status.podIP",
            "MLOPS_NODE": "spec.nodeName",
        }
        return [
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in seen.items()),
            *({"name": name, "value": value} for name, value in given.items()),
            *(
                {"name": name, "valueFrom": {"secretKeyRef": {"name": self.owned_name, "key": name}}}
                for name in self.launch.environment
            ),
        ]


def merge(template: dict[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with what a template says first. Lists of named things are merged by name, other lists joined."""
    result = dict(template)
    for key, value in ours.items():
        before = result.get(key)
        if before is None or key in ("command", "args"):
            result[key] = value
        elif isinstance(before, dict) and isinstance(value, Mapping):
            result[key] = merge(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            result[key] = _joined(before, value)
    return result


def _joined(template: list[Any], ours: list[Any]) -> list[Any]:
    named = {item["name"]: item for item in ours if isinstance(item, Mapping) and "name" in item}
    result = []
    for item in template:
        mine = named.pop(item["name"], None) if isinstance(item, Mapping) and "name" in item else None
        result.append(merge(dict(item), mine) if mine is not None else item)
    return result + [
        item for item in ours if not (isinstance(item, Mapping) and "name" in item) or item["name"] in named
    ]


def _label(name: str, value: str) -> dict[str, str]:
    """A label's value has at most 63 characters of a few kinds."""
    return {name: re.sub(r"[^A-Za-z0-9_.-]", "-", value)[:63].strip("-_.")}


def _exit_code(code: int) -> dict[str, Any]:
    return {"containerName": CONTAINER, "operator": "In", "values": [code]}


def _item(name: str) -> dict[str, str]:
    return {"key": name, "path": name}


def _source(volume: PodVolume) -> dict[str, Any]:
    if volume.claim:
        return {"persistentVolumeClaim": {"claimName": volume.claim, "readOnly": volume.read_only}}
    if volume.secret:
        return {"secret": {"secretName": volume.secret}}
    if volume.config_map:
        return {"configMap": {"name": volume.config_map}}
    return {"hostPath": {"path": volume.host_path, "type": "Directory"}}


def _leaving_dead_nodes(tolerations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sooner than after the five minutes that a cluster gives every pod: a gang stands still meanwhile."""
    said = {toleration.get("key") for toleration in tolerations}
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _DEAD_NODE_SECONDS}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        if key not in said
    ]


def _avoiding(affinity: Mapping[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
    """The affinity, and rather another node than these: where all have failed one of them is better than none."""
    # By name: the label kubernetes.io/hostname may say something else. A field is compared with one value only.
    avoided = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in sorted(nodes)]
    node = affinity.get("nodeAffinity", {})
    preferred = [*node.get(_PREFERRED, []), {"weight": 100, "preference": {"matchFields": avoided}}]
    return {**affinity, "nodeAffinity": {**node, _PREFERRED: preferred}}
