from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from mlops.contract.learners import TORCH
from mlops.contract.refs import CheckpointRef, ModelVersionRef, Ref
from mlops.contract.section import leaves
from mlops.contract.sections.train import Train
from mlops_provider.deployment import Deployment
from mlops_provider.links import TrackingLink, run_url
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.initial_weights import initial_model, initial_version, with_weights
from mlops_provider.operators.runs import recipe_folders

if TYPE_CHECKING:
    from airflow.sdk import Context


class TrainOperator(StepOperator):
    """
    Train a model with torchrun and return its best checkpoint.

    Settings: :class:`mlops.contract.sections.train.Train`. Returns a CheckpointRef.

    :param features: materialised features to train on, or the study that found the best settings (templated)
    """

    step = "train"
    section = Train
    operator_extra_links = (TrackingLink(),)

    def __init__(self, *, features: XComArg | Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(upstream=features, **kwargs)
        self._initial: ModelVersionRef | None = None

    def models(self) -> list[str]:
        return [] if (name := initial_model(self.settings)) is None else [name]

    def config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        if initial_model(settings) is not None:
            self._initial = initial_version(settings, self._deployment())
        return with_weights(settings, self._initial)

    def baselines(self, deployment: Deployment) -> dict[str, Ref]:
        return {} if self._initial is None else {"initialise": self._initial}

    def code_paths(self, settings: Mapping[str, Any]) -> list[str]:
        return training_code(settings)

    def gang(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return training_gang(settings)

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        run = ref.ancestor(CheckpointRef).tracking_run
        self.links[TrackingLink.name] = run_url(deployment, run)


def training_code(train: Mapping[str, Any]) -> list[str]:
    """See :meth:`StepOperator.code_paths`, for the settings of a training."""
    # A program and an objective of the recipe lie in the model's folder.
    paths = [train[name] for name in ("model", "loss", "configure_optimizer", "curriculum") if train[name]]
    paths += [value for _, value in leaves(train["learner_settings"]) if isinstance(value, str)]
    return recipe_folders([*paths, train["learner"], train["objective"], train["metric"], *train["metrics"]])


def training_gang(train: Mapping[str, Any]) -> dict[str, Any]:
    """See :meth:`StepOperator.gang`, for the settings of a training."""
    if train["learner"] != TORCH:
        return {}
    return {
        "processes": train["processes"],
        "nodes": str(train["nodes"]),
        "max_restarts": train["max_restarts"],
        "hang_seconds": train["hang_seconds"],
    }
