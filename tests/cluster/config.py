"""What a test says about its cluster: the nodes, the images that can be pulled, how fast things are retried."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image that can be pulled. Its root file system is this machine's, without /tmp, /run, /mnt and /var/tmp."""

    env: Mapping[str, str] = field(default_factory=dict)
    """The image's environment, as ``ENV`` in a Dockerfile."""
    workdir: str = "/"
    """Where processes start, unless the container says otherwise."""
    path: Sequence[str] = ()
    """Folders put in front of PATH."""
    folders: Sequence[str] = ()
    """Folders of this machine that the image has too, though they lie in a hidden place such as /tmp; read-only."""
    entrypoint: Sequence[str] = ()
    """What runs in front of ``args`` unless the container has a ``command``."""
    user: int = 0
    """The image's user id; matters to ``runAsNonRoot`` only, for every process runs as root."""
    pull_seconds: float = 0.0
    """How long the first pull on a node takes."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that is there from the start."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()
    cpu: str = "8"
    memory: str = "32Gi"
    gpus: int = 0
    pods: int = 110

    def object(self) -> dict[str, Any]:
        """The node as one POSTs it."""
        capacity = {"cpu": self.cpu, "memory": self.memory, "pods": str(self.pods)}
        if self.gpus:
            capacity["nvidia.com/gpu"] = str(self.gpus)
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": dict(self.labels)},
            "spec": {"taints": [dict(taint) for taint in self.taints]} if self.taints else {},
            "status": {"capacity": capacity},
        }


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """All of it, as it travels to the cluster's process."""

    images: Mapping[str, Image]
    nodes: Sequence[Node]
    namespaces: Sequence[str] = ("default",)
    service_accounts: Sequence[str] = ("default",)
    priority_classes: Sequence[str] = ("system-cluster-critical", "system-node-critical")
    queues: Mapping[str, int] = field(default_factory=dict)
    """Kueue's, and how many pods each lets run."""
    job_backoff_seconds: float = 1.0
    """Wait before a Job's failed pod is replaced, doubled per failure; 10 in a cluster."""
    crash_backoff_seconds: float = 1.0
    """Wait before a container's second restart, doubled each time; 10 in a cluster."""
    pull_backoff_seconds: float = 1.0
    """Wait before an image is pulled again, doubled each time; 10 in a cluster."""
    history: int = 10_000
    """Changes a watch can start from; an older resourceVersion is 410 Gone."""

    def write(self, file: Path) -> None:
        """Write it where ``read`` finds it."""
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> Configuration:
        """Read what ``write`` wrote, or a test's own JSON file; unknown keys are errors."""
        document = json.loads(file.read_text())
        images = {name: Image(**image) for name, image in document.pop("images", {}).items()}
        nodes = [Node(**node) for node in document.pop("nodes", [{"name": "node-0"}])]
        return cls(images=images, nodes=nodes, **document)
