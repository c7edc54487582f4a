"""
A stand-in Kubernetes cluster for tests: the API over real HTTP, a scheduler, a Job controller, and a kubelet that runs
containers as local processes in Linux namespaces. Needs root on Linux, and nothing else.

    with running_cluster(tmp_path, images={"trainer:1": Image(path=[".venv/training/bin"])}) as cluster:
        config.load_kube_config(str(cluster.kubeconfig))

Where it differs from a cluster it is the stricter: what it does not support, it refuses.
"""

from __future__ import annotations

from cluster.config import Image, Node
from cluster.running import Cluster, running_cluster

__all__ = ["Cluster", "Image", "Node", "running_cluster"]
