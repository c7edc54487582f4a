"""What Airflow shows and registers of an installed provider."""

from __future__ import annotations

from typing import Any

from mlops_provider import __version__


def _option(description: str, example: str, default: str | None = None) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": "string",
        "example": example,
        "default": default,
    }


def get_provider_info() -> dict[str, Any]:
    """The provider's metadata, as Airflow's ``provider_info.schema.json`` wants it."""
    return {
        "package-name": "airflow-provider-mlops",
        "name": "MLOps pipelines",
        "description": "Production ML training pipelines, from data to a registered model",
        "versions": [__version__],
        "config": {
            "mlops": {
                "description": "Where the steps of the pipelines run and keep things",
                "options": {
                    "home": _option("Folder that holds include/ and training/", "/opt/mlops"),
                    "store": _option("URI of the object store's root", "s3://models/mlops"),
                    "tracking_uri": _option("MLflow server, as the steps reach it", "http://mlflow:5000"),
                    "tracking_url": _option("MLflow server, as browsers reach it", "https://mlflow.example.com"),
                    "steps_login": _option(
                        "Airflow connection with user and password at MLflow for the steps that train and evaluate",
                        "mlflow_steps",
                    ),
                    "release_login": _option(
                        "Airflow connection with user and password at MLflow for the steps that register and promote",
                        "mlflow_release",
                    ),
                    "reader_login": _option(
                        "Airflow connection with user and password at MLflow for looking up registered models",
                        "mlflow_reader",
                    ),
                    "training_python": _option("Interpreter of the training runtime", "/opt/training/bin/python"),
                    "validation_python": _option("Interpreter of the validation runtime", "/opt/validation/bin/python"),
                    "launcher": _option(
                        "How steps run that do not say: process, pod or a launcher of another package", "pod", "process"
                    ),
                    "warm_runtimes": _option(
                        "Whether steps of the process launcher are forked from a process that has the runtime's "
                        "libraries imported; it is started with the first step",
                        "False",
                        "True",
                    ),
                    "warm_idle_seconds": _option(
                        "Seconds without a step after which such a process ends", "3600", "600"
                    ),
                    "training_image": _option("Image of the training runtime, for pods", "example.com/training:1.0"),
                    "validation_image": _option(
                        "Image of the validation runtime, for pods", "example.com/validation:1.0"
                    ),
                    "kubernetes_connection": _option("Connection id of the cluster that pods run in", "kubernetes_gpu"),
                    "kubernetes_namespace": _option("Namespace of the pods", "mlops-training", "default"),
                    "release_key": _option(
                        "What signs release decisions: a file with an Ed25519 private key, mode 600, where no step can "
                        "read it (`mlops keys new FILE` makes one), or awskms: and the id, ARN or alias of a key in "
                        "AWS KMS",
                        "/etc/mlops/release.pem",
                    ),
                    "release_public_keys": _option(
                        "File with the trusted public keys, one a line, with `person` behind those that people have, "
                        "who sign entries of audit trails only; default: <release_key>.pub of a file",
                        "/etc/mlops/release.pub",
                    ),
                    "anchor_bucket": _option(
                        "Bucket of S3 with Object Lock and a default retention, where the newest entry of each audit "
                        "trail is kept too",
                        "s3://mlops-anchors/production",
                    ),
                    "experiment_sources": _option(
                        "Folders and prefixes that experiments in Airflow may read in place of what their pipeline "
                        "reads, between spaces; none by default",
                        "s3://data/fraud/ /srv/deliveries",
                    ),
                    "experiment_code": _option(
                        "Whether experiments in Airflow may be sent with code: never; pods: where the steps run as "
                        "pods; always",
                        "pods",
                        "never",
                    ),
                    "infrastructure_patience": _option(
                        "How long a try of a task waits for MLflow, the store or the Kubernetes API", "90m", "6h"
                    ),
                    "teams_file": _option(
                        "File of the teams that share the deployment; relative paths start at home",
                        "include/kubernetes/teams.yaml",
                    ),
                    "pod_defaults": _option(
                        "File with settings of all pipelines' pods; relative paths start at home",
                        "include/kubernetes/pod_defaults.yaml",
                    ),
                },
            }
        },
    }
