"""Learn the probability that a label is 1."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from mlops.contract.section import Section
from mlops.contract.step import BadDataError
from mlops.data.shards.batch import Batch
from mlops.metrics.predictions import Floats, Predictions
from mlops.objectives.outputs import check_outputs, mean_of_rows, without_padding


class Binary:
    """Implements :class:`mlops.Objective`."""

    num_outputs = 1
    columns: Mapping[str, str] = {"score": "float", "probability": "float"}

    def __init__(self, settings: Section) -> None:
        pass

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return binary_loss(model, batch)

    def predict(self, outputs: Tensor, batch: Batch) -> Floats:
        return without_padding(check_outputs(outputs, batch), batch)

    def check_labels(self, labels: Floats) -> None:
        if len(wrong := labels[(labels != 0) & (labels != 1)]):
            raise BadDataError(
                f"objective 'binary' needs labels 0 and 1, found {wrong[0]:g}; make such labels in ingest.transform"
            )

    def answer(self, predictions: Predictions) -> Mapping[str, npt.NDArray[np.floating]]:
        logits = predictions.predicted
        return {"score": logits, "probability": torch.sigmoid(torch.from_numpy(logits)).numpy()}


def binary_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Binary cross entropy with logits; over the rows of a sample averaged. ``[B]``"""
    logits = check_outputs(model(batch.features), batch)
    losses = functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
    return mean_of_rows(losses, batch)
