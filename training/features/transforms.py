"""The transforms of a :class:`training.features.feature_set.FeatureSet`, as a recipe imports them."""

from __future__ import annotations

from training.features.categorical import Cross, Hash, Vocabulary
from training.features.numeric import Bucketise, Cyclical, Log, Passthrough, RobustScale, Standardise
from training.features.protocol import Encoder, Missing, State, Transform

__all__ = [
    "Bucketise",
    "Cross",
    "Cyclical",
    "Encoder",
    "Hash",
    "Log",
    "Missing",
    "Passthrough",
    "RobustScale",
    "Standardise",
    "State",
    "Transform",
    "Vocabulary",
]
