"""The mean Tweedie deviance of a power between 1 and 2 (Jorgensen 1987, "Exponential dispersion models")."""

from __future__ import annotations

import numpy as np

from mlops import Predictions, Weighted, ratio_of_sums


def weighted_deviance(predictions: Predictions, power: float) -> Weighted:
    labels, means = predictions.labels.astype(np.float64), predictions.predicted.astype(np.float64)
    deviances = 2 * (
        labels ** (2 - power) / ((1 - power) * (2 - power))
        - labels * means ** (1 - power) / (1 - power)
        + means ** (2 - power) / (2 - power)
    )
    return ratio_of_sums(deviances, np.ones(len(labels)), predictions.offsets)
