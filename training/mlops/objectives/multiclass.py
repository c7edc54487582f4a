"""Learn which of several classes a row is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from torch.nn import functional

from mlops.contract.objective_settings import MulticlassSettings
from mlops.contract.step import BadDataError
from mlops.data.shards.batch import Batch
from mlops.metrics.classes import class_probabilities
from mlops.metrics.predictions import Floats, Predictions
from mlops.objectives.outputs import check_outputs, mean_of_rows, without_padding


class Multiclass:
    """Implements :class:`mlops.Objective`. The model gives the logits of K classes."""

    def __init__(self, settings: MulticlassSettings) -> None:
        self._classes = settings.classes

    @property
    def num_outputs(self) -> int:
        return len(self._classes)

    @property
    def columns(self) -> Mapping[str, str]:
        return {"class": "string", "probability": "float"} | dict.fromkeys(map(_column, self._classes), "float")

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy, over the rows of a sample averaged. ``[B]``"""
        logits = check_outputs(model(batch.features), batch, self.num_outputs)
        # Flat: of several dimensions its gradient is not deterministic on GPUs.
        losses = functional.cross_entropy(logits.flatten(0, -2), batch.labels.flatten().long(), reduction="none")
        return mean_of_rows(losses.view(batch.labels.shape), batch)

    def predict(self, outputs: Tensor, batch: Batch) -> Floats:
        """Return logits, ``[N, K]``."""
        return without_padding(check_outputs(outputs, batch, self.num_outputs), batch)

    def check_labels(self, labels: Floats) -> None:
        last = self.num_outputs - 1
        if len(wrong := labels[~np.isin(labels, np.arange(self.num_outputs))]):
            raise BadDataError(
                f"objective 'multiclass' needs the number of a class as label, 0 to {last} ({self._classes[0]} to "
                f"{self._classes[-1]}), found {wrong[0]:g}; name the classes in FeatureSet.classes, or add to "
                "train.objective_settings.classes"
            )

    def answer(self, predictions: Predictions) -> Mapping[str, npt.NDArray[Any]]:
        """Return the most probable ``class`` by its name, its ``probability``, and each one's as ``probability_x``."""
        probabilities = class_probabilities(predictions.predicted).astype(np.float32)
        found: dict[str, npt.NDArray[Any]] = {
            "class": np.array(self._classes)[probabilities.argmax(axis=1)],
            "probability": probabilities.max(axis=1),
        }
        for number, name in enumerate(self._classes):
            found[_column(name)] = probabilities[:, number]
        return found


def _column(name: str) -> str:
    return f"probability_{name}"
