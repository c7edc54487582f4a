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
                    "training_python": _option("Interpreter of the training runtime", "/opt/training/bin/python"),
                    "validation_python": _option("Interpreter of the validation runtime", "/opt/validation/bin/python"),
                    "launcher": _option("How steps run that do not say: process or pod", "pod", "process"),
                    "training_image": _option("Image of the training runtime, for pods", "example.com/training:1.0"),
                    "validation_image": _option(
                        "Image of the validation runtime, for pods", "example.com/validation:1.0"
                    ),
                    "kubernetes_connection": _option("Connection id of the cluster that pods run in", "kubernetes_gpu"),
                    "kubernetes_namespace": _option("Namespace of the pods", "mlops-training", "default"),
                    "pod_defaults": _option(
                        "File with settings of all pipelines' pods; relative paths start at home",
                        "include/kubernetes/pod_defaults.yaml",
                    ),
                },
            }
        },
    }
