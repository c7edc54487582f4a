from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from mlops.contract.extensions import recipe_folders
from mlops.contract.learners import TORCH
from mlops.contract.refs import CheckpointRef, Ref
from mlops.contract.sections.train import Train
from mlops_provider.deployment import Deployment
from mlops_provider.links import CurvesLink, TrackingLink, run_url
from mlops_provider.operators.runs import Asked
from mlops_provider.operators.warm_start import WarmStartOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class TrainOperator(WarmStartOperator):
    """
    Train a model with torchrun and return its best checkpoint.

    Settings: :class:`mlops.contract.sections.train.Train`. Returns a CheckpointRef.

    :param features: materialised features to train on, or the study that found the best settings (templated)
    """

    step = "train"
    section = Train
    operator_extra_links = (CurvesLink(), TrackingLink())

    def __init__(self, *, features: XComArg | Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(upstream=features, **kwargs)

    def asked_settings(self, settings: dict[str, Any], asked: Asked, deployment: Deployment) -> dict[str, Any]:
        if asked.weights is None:
            return settings
        from mlops_provider.operators import judged_weights

        return settings | judged_weights.settings(asked, deployment)

    def code_paths(self, settings: Mapping[str, Any]) -> list[str]:
        # A program of the recipe lies in the model's folder.
        return recipe_folders(settings)

    def gang(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return training_gang(settings)

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        run = ref.ancestor(CheckpointRef).tracking_run
        self.links[TrackingLink.name] = run_url(deployment, run)


def training_gang(train: Mapping[str, Any]) -> dict[str, Any]:
    """See :meth:`StepOperator.gang`, for the settings of a training."""
    if train["learner"] != TORCH or train["epochs"] == 0:
        return {}
    return {
        "processes": train["processes"],
        "nodes": str(train["nodes"]),
        "max_restarts": train["max_restarts"],
        "hang_seconds": train["hang_seconds"],
    }
