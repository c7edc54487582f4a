"""Learn the order of the documents of a query by their graded relevance."""

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
from mlops.objectives.outputs import check_outputs, without_padding


class Ranking:
    """Implements :class:`mlops.Objective`."""

    num_outputs = 1
    columns: Mapping[str, str] = {"score": "float"}

    def __init__(self, settings: Section) -> None:
        pass

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return ranking_loss(model, batch)

    def predict(self, outputs: Tensor, batch: Batch) -> Floats:
        return without_padding(check_outputs(outputs, batch), batch)

    def check_labels(self, labels: Floats) -> None:
        # An exponent of 2 that float32 still tells from the next one.
        if len(wrong := labels[~((labels >= 0) & (labels <= 24))]):
            raise BadDataError(
                f"objective 'ranking' needs labels from 0 to 24, the grade of relevance, found {wrong[0]:g}; make such "
                "grades in ingest.transform"
            )

    def answer(self, predictions: Predictions) -> Mapping[str, npt.NDArray[np.floating]]:
        return {"score": predictions.predicted}


def ranking_loss(model: nn.Module, batch: Batch) -> Tensor:
    """
    Listwise softmax cross entropy (ListNet, Cao et al. 2007) with the gains ``2^relevance - 1`` as target distribution.

    :return: ``[B]``; 0 for a query without any relevant document, which says nothing about order
    """
    assert batch.mask is not None, "ranking needs grouped samples"
    scores_BD = check_outputs(model(batch.features), batch).masked_fill(~batch.mask, float("-inf"))
    gains_BD = torch.exp2(batch.labels) - 1
    targets_BD = gains_BD / gains_BD.sum(1, keepdim=True).clamp_min(torch.finfo(gains_BD.dtype).tiny)
    # Padding has log-probability -inf and target 0; their product would be NaN.
    log_probabilities_BD = functional.log_softmax(scores_BD, dim=1).masked_fill(~batch.mask, 0.0)
    return -(targets_BD * log_probabilities_BD).sum(1)
