"""
A cluster for tests of the pod launcher: the stand-in, or a real one, where ``MLOPS_TEST_CLUSTER=1``. It takes

- ``KUBECONFIG``, of someone who may do everything;
- ``MLOPS_TEST_NAMESPACE``, an empty one in which pods may mount folders of their node;
- nodes that have this checkout and ``/var/tmp`` at the same paths, such as kind's with ``extraMounts``;
- the images of :data:`IMAGES` on the nodes, with a user of this process's id, which is not root's;
- ``MLOPS_TEST_HOST``, the address of this machine at which pods reach a server that a test starts;
- ``MLOPS_TEST_QUEUE``, where there is Kueue.

Only the API is used, by its own client.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.config import Image
from cluster.running import can_run, running_cluster
from kubernetes import client, config
from kubernetes.client.rest import ApiException
from project import REPOSITORY

from mlops.contract.step import python_path
from mlops_provider.deployment import Deployment

NAMESPACE = os.environ.get("MLOPS_TEST_NAMESPACE", "default")
IMAGES = {"training": "mlops/training:test", "validation": "mlops/validation:test"}
GRACE_SECONDS = 3


@dataclass(frozen=True, kw_only=True)
class PodCluster:
    kubeconfig: Path
    home: Path
    images: Mapping[str, str] = field(default_factory=lambda: IMAGES)
    queue: str | None = "team"
    """A LocalQueue of Kueue's that lets two pods run; None where there is none."""
    user: int = 50000
    """Of the pods; the images have this one."""
    host: str = "127.0.0.1"
    """At which pods reach a server of this machine."""
    patience_seconds: float = 30.0
    """For what takes a real kubelet, a registry or a garbage collector its time."""

    def __post_init__(self) -> None:
        api = config.new_client_from_config(str(self.kubeconfig))
        object.__setattr__(self, "core", client.CoreV1Api(api))
        object.__setattr__(self, "batch", client.BatchV1Api(api))

    core: client.CoreV1Api = field(init=False, repr=False)
    batch: client.BatchV1Api = field(init=False, repr=False)

    def settings(self, writable: Sequence[Path]) -> dict[str, str]:
        """Airflow's, by which every step that does not say otherwise is a pod."""
        defaults = self.kubeconfig.parent / "pod_defaults.yaml"
        defaults.write_text(yaml.safe_dump({"all": self.pods(writable)}))
        return {
            "KUBECONFIG": str(self.kubeconfig),
            "AIRFLOW__MLOPS__LAUNCHER": "pod",
            "AIRFLOW__MLOPS__TRAINING_IMAGE": self.images["training"],
            "AIRFLOW__MLOPS__VALIDATION_IMAGE": self.images["validation"],
            "AIRFLOW__MLOPS__KUBERNETES_NAMESPACE": NAMESPACE,
            "AIRFLOW__MLOPS__POD_DEFAULTS": str(defaults),
        }

    def pods(self, writable: Sequence[Path]) -> dict[str, Any]:
        return {
            "cpu": "100m",
            "memory": "2Gi",
            "grace_seconds": GRACE_SECONDS,
            "run_as_user": self.user,
            "env": {"MLOPS_HOME": str(self.home), "PYTHONPATH": python_path(self.home)},
            # The code, too: it may lie in a folder that the pod has of its own, /tmp say.
            "volumes": [
                {"mount_path": str(path), "host_path": str(path), "read_only": path not in writable}
                for path in dict.fromkeys((REPOSITORY, self.home, *writable))
            ],
        }

    def deployment(self, store: Path) -> Deployment:
        return Deployment(
            home=self.home,
            store=f"file://{store}",
            tracking_uri="http://127.0.0.1:1",
            tracking_url="http://127.0.0.1:1",
            pythons={},
            images=self.images,
            kubernetes_namespace=NAMESPACE,
            infrastructure_patience=timedelta(minutes=2),  # a cluster that died says so before the test's limit
        )

    def running(self) -> list[str]:
        """Names of the pods that run, and are not about to end."""
        pods = self.core.list_namespaced_pod(NAMESPACE).items
        return sorted(
            pod.metadata.name
            for pod in pods
            if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
        )

    def evict(self, pod: str) -> None:
        """As a drained node does, and a preempting scheduler."""
        body = client.V1Eviction(
            api_version="policy/v1", kind="Eviction", metadata=client.V1ObjectMeta(name=pod, namespace=NAMESPACE)
        )
        try:
            self.core.create_namespaced_pod_eviction(pod, NAMESPACE, body)
        except client.ApiException as error:
            if error.status != 404:  # it has just ended
                raise

    def kill(self, pod: str) -> None:
        """Without notice, as a machine that loses its power."""
        self.core.delete_namespaced_pod(pod, NAMESPACE, grace_period_seconds=0)

    def log(self, pod: str) -> str:
        """What it has written so far."""
        return str(self.core.read_namespaced_pod_log(pod, NAMESPACE))

    @contextmanager
    def no_new_pods(self) -> Iterator[Callable[[], None]]:
        """What is yielded cordons all nodes, until the end."""
        nodes = [node.metadata.name for node in self.core.list_node().items if not node.spec.unschedulable]

        def cordon(*, unschedulable: bool = True) -> None:
            for name in nodes:
                self.core.patch_node(name, {"spec": {"unschedulable": unschedulable}})

        try:
            yield cordon
        finally:
            cordon(unschedulable=False)

    def objects(self) -> list[str]:
        """``kind/name`` of what steps leave behind."""
        selector = "app.kubernetes.io/managed-by=mlops"
        found = [
            *(f"job/{item.metadata.name}" for item in self.batch.list_namespaced_job(NAMESPACE).items),
            *(f"pod/{item.metadata.name}" for item in self.core.list_namespaced_pod(NAMESPACE).items),
        ]
        for kind, listed in (
            ("service", self.core.list_namespaced_service(NAMESPACE, label_selector=selector)),
            ("secret", self.core.list_namespaced_secret(NAMESPACE, label_selector=selector)),
        ):
            found += [f"{kind}/{item.metadata.name}" for item in listed.items]
        return found

    def wait_until_empty(self) -> list[str]:
        """What is still there in the end."""
        deadline = time.monotonic() + self.patience_seconds
        while (found := self.objects()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def clear(self) -> None:
        """Delete what steps left behind."""
        delete = {
            "job": self.batch.delete_namespaced_job,
            "pod": self.core.delete_namespaced_pod,
            "service": self.core.delete_namespaced_service,
            "secret": self.core.delete_namespaced_secret,
        }
        for each in self.objects():
            kind, _, name = each.partition("/")
            try:
                delete[kind](name, NAMESPACE, propagation_policy="Background")
            except ApiException as error:
                if error.status != HTTPStatus.NOT_FOUND:  # it went with its Job
                    raise
        assert self.wait_until_empty() == [], "it cannot be deleted"


@contextmanager
def visible_folder() -> Iterator[Path]:
    """A folder that pods can mount: not below /tmp, which is each pod's own."""
    path = Path(tempfile.mkdtemp(prefix="pods-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


@contextmanager
def pod_cluster(folder: Path, home: Path) -> Iterator[PodCluster]:
    folder.mkdir(parents=True, exist_ok=True)
    if os.environ.get("MLOPS_TEST_CLUSTER") == "1":
        yield PodCluster(
            kubeconfig=Path(os.environ["KUBECONFIG"]),
            home=home,
            queue=os.environ.get("MLOPS_TEST_QUEUE"),
            user=os.getuid(),
            host=os.environ["MLOPS_TEST_HOST"],
            patience_seconds=180.0,
        )
        return
    if not can_run():
        pytest.skip("the stand-in cluster needs root on Linux, to make namespaces and mounts")
    images = {
        IMAGES[runtime]: Image(
            env={"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            path=[f"{REPOSITORY}/.venv/{runtime}/bin"],
            workdir=str(home),
            user=50000,
        )
        for runtime in IMAGES
    }
    with running_cluster(folder, images=images, queues={"team": 2}) as cluster:
        yield PodCluster(kubeconfig=Path(cluster.kubeconfig), home=home)
