"""Learns the mean of a Tweedie distribution, of which the model gives the logarithm."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from mlops_tweedie import Tweedie
from torch import Tensor, nn

from mlops import BadDataError, Batch, Predictions, check_outputs, mean_of_rows, without_padding

Floats = npt.NDArray[np.floating]


class TweedieObjective:
    num_outputs = 1
    columns: Mapping[str, str] = {"prediction": "float"}

    def __init__(self, settings: Tweedie) -> None:
        self._power = settings.power

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The negative log-likelihood, without the part that no model changes (Jorgensen 1987)."""
        logs, power = check_outputs(model(batch.features), batch), self._power
        of_mean = torch.exp((2 - power) * logs) / (2 - power)
        of_label = batch.labels * torch.exp((1 - power) * logs) / (1 - power)
        return mean_of_rows(of_mean - of_label, batch)

    def predict(self, outputs: Tensor, batch: Batch) -> Floats:
        return np.exp(without_padding(check_outputs(outputs, batch), batch))

    def check_labels(self, labels: Floats) -> None:
        if len(wrong := labels[~(labels >= 0)]):
            raise BadDataError(
                f"objective 'tweedie' needs labels of at least 0, found {wrong[0]:g}; leave such rows out"
            )

    def answer(self, predictions: Predictions) -> Mapping[str, Floats]:
        return {"prediction": predictions.predicted}
