"""Learn a number: its mean, its median, its quantiles, or the rate of a count."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from mlops.contract.objective_settings import RegressionSettings
from mlops.contract.step import BadDataError
from mlops.data.shards.batch import Batch
from mlops.metrics.predictions import Floats, Predictions
from mlops.metrics.regression import point
from mlops.objectives.outputs import check_outputs, mean_of_rows, without_padding


class Regression:
    """Implements :class:`mlops.Objective`."""

    def __init__(self, settings: RegressionSettings) -> None:
        self._settings = settings

    @property
    def num_outputs(self) -> int:
        return max(1, len(self._settings.quantiles))

    @property
    def columns(self) -> Mapping[str, str]:
        return {"prediction": "float"} | {_column(level): "float" for level in self._settings.quantiles}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of each sample, ``[B]``, over the rows of a sample averaged."""
        outputs = check_outputs(model(batch.features), batch, self.num_outputs)
        return mean_of_rows(self._losses(outputs, batch.labels), batch)

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        match self._settings.loss:
            case "mse":
                return (outputs - labels) ** 2
            case "mae":
                return (outputs - labels).abs()
            case "huber":
                return functional.huber_loss(outputs, labels, reduction="none", delta=self._settings.delta)
            case "poisson":
                return functional.poisson_nll_loss(outputs, labels, log_input=True, reduction="none")
            case "quantile":
                return pinball_losses(self._by_level(outputs), labels, self._settings.quantiles)

    def _by_level(self, outputs: Tensor) -> Tensor:
        """Return ``[..., K]`` also where K is 1."""
        return outputs.unsqueeze(-1) if self.num_outputs == 1 else outputs

    def predict(self, outputs: Tensor, batch: Batch) -> Floats:
        """
        Return estimates ``[N]`` in the unit of the label, or quantiles ``[N, K]`` in ascending order: sorted, where the
        model's cross each other, they are no further from the truth (Chernozhukov et al. 2010).
        """
        found = without_padding(check_outputs(outputs, batch, self.num_outputs), batch)
        if self._settings.loss == "poisson":
            with np.errstate(over="ignore"):  # what is not finite is an error where it is used
                return np.exp(found)
        return np.sort(found, axis=1) if self.num_outputs > 1 else found

    def check_labels(self, labels: Floats) -> None:
        if num_wrong := int((~np.isfinite(labels)).sum()):
            raise BadDataError(
                f"objective 'regression' needs a number as label, and {num_wrong} of {len(labels)} are missing or not "
                "finite; leave such rows out in ingest.transform or by the feature set's where"
            )
        if self._settings.loss == "poisson" and len(wrong := labels[labels < 0]):
            raise BadDataError(
                f"objective 'regression' with loss poisson needs counts as labels, at least 0, found {wrong[0]:g}; "
                "take another loss"
            )

    def answer(self, predictions: Predictions) -> Mapping[str, npt.NDArray[np.floating]]:
        """Return ``prediction``, of quantiles the median, and each quantile as ``quantile_0.9``."""
        found: dict[str, npt.NDArray[np.floating]] = {"prediction": point(predictions)}
        predicted = predictions.predicted.reshape(predictions.num_rows, self.num_outputs)
        for number, level in enumerate(self._settings.quantiles):
            found[_column(level)] = predicted[:, number]
        return found


def pinball_losses(outputs: Tensor, labels: Tensor, levels: list[float]) -> Tensor:
    """
    Pinball loss (Koenker & Bassett 1978), over the levels averaged.

    :param outputs: ``[..., K]``, a quantile of each level
    :param labels: ``[...]``
    :return: ``[...]``
    """
    errors = labels.unsqueeze(-1) - outputs
    # No tensor of the levels, which would have to be copied to the device at each step.
    losses = [torch.maximum(level * errors[..., k], (level - 1) * errors[..., k]) for k, level in enumerate(levels)]
    return torch.stack(losses).mean(0)


def _column(level: float) -> str:
    return f"quantile_{level:g}"
