"""The transforms of a :class:`mlops.features.feature_set.FeatureSet`, as a recipe imports them."""

from __future__ import annotations

from mlops.features.categorical import Cross, Hash, Vocabulary
from mlops.features.numeric import Bucketise, Cyclical, Log, Passthrough, RobustScale, Standardise
from mlops.features.protocol import Encoder, Missing, State, Transform

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
