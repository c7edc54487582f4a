"""The public surface of ``mlops``, by where its names are defined."""

from __future__ import annotations

from typing import Final

MODULE_OF: Final = {
    "Batch": "mlops.data.shards.batch",
    "Bucketise": "mlops.features.transforms",
    "Bytes": "mlops.features.token_set",
    "Cross": "mlops.features.transforms",
    "Cyclical": "mlops.features.transforms",
    "Encoder": "mlops.features.protocol",
    "FeatureSet": "mlops.features.feature_set",
    "Hash": "mlops.features.transforms",
    "Log": "mlops.features.transforms",
    "Missing": "mlops.features.transforms",
    "Passthrough": "mlops.features.transforms",
    "Program": "mlops.program",
    "RobustScale": "mlops.features.transforms",
    "Standardise": "mlops.features.transforms",
    "State": "mlops.features.protocol",
    "Table": "mlops.data.engine.engines",
    "TokenSet": "mlops.features.token_set",
    "Tokenizer": "mlops.features.token_set",
    "Transform": "mlops.features.protocol",
    "Vocabulary": "mlops.features.transforms",
    "last_known": "mlops.features.point_in_time",
    "trailing_sums": "mlops.features.point_in_time",
}
"""Module of each public name. The names stay, the modules may change."""
