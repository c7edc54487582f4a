"""Learn which of several labels a row has: any number of them, each by itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from torch.nn import functional

from mlops.contract.objective_settings import MultilabelSettings
from mlops.contract.step import BadDataError
from mlops.data.shards.batch import Batch
from mlops.metrics.binary import probabilities
from mlops.metrics.predictions import Floats, Predictions
from mlops.objectives.outputs import check_outputs, mean_of_rows, without_padding


class Multilabel:
    """Implements :class:`mlops.Objective`. The model gives the logits of L labels."""

    def __init__(self, settings: MultilabelSettings) -> None:
        self._labels = settings.labels

    @property
    def num_outputs(self) -> int:
        return len(self._labels)

    @property
    def columns(self) -> Mapping[str, str]:
        return {f"probability_{name}": "float" for name in self._labels}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Binary cross entropy with logits, over a row's labels and the rows of a sample averaged. ``[B]``"""
        logits = check_outputs(model(batch.features), batch, self.num_outputs)
        losses = functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
        return mean_of_rows(losses.mean(-1), batch)

    def predict(self, outputs: Tensor, batch: Batch) -> Floats:
        """Return logits, ``[N, L]``."""
        return without_padding(check_outputs(outputs, batch, self.num_outputs), batch)

    def check_labels(self, labels: Floats) -> None:
        if len(wrong := labels[(labels != 0) & (labels != 1)]):
            raise BadDataError(
                f"objective 'multilabel' needs labels 0 and 1, found {wrong[0]:g}; make such labels in ingest.transform"
            )

    def answer(self, predictions: Predictions) -> Mapping[str, npt.NDArray[np.floating]]:
        """Return the probability of each label, as ``probability_x``."""
        shares = probabilities(predictions.predicted).astype(np.float32)
        return {name: shares[:, number] for number, name in enumerate(self.columns)}
