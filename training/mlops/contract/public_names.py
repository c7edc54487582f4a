"""The public surface of ``mlops``, by where its names are defined."""

from __future__ import annotations

from typing import Final

MODULE_OF: Final = {
    "BadConfigError": "mlops.contract.step",
    "BadDataError": "mlops.contract.step",
    "Batch": "mlops.data.shards.batch",
    "Bucketise": "mlops.features.transforms",
    "Bytes": "mlops.features.token_set",
    "Cross": "mlops.features.transforms",
    "Cyclical": "mlops.features.transforms",
    "Encoder": "mlops.features.protocol",
    "FeatureSet": "mlops.features.feature_set",
    "Hash": "mlops.features.transforms",
    "Log": "mlops.features.transforms",
    "MetricSpec": "mlops.contract.metrics",
    "Missing": "mlops.features.transforms",
    "Objective": "mlops.objectives.objective",
    "ObjectiveSpec": "mlops.contract.objectives",
    "Parameter": "mlops.contract.metrics",
    "Passthrough": "mlops.features.transforms",
    "Predictions": "mlops.metrics.predictions",
    "Program": "mlops.program",
    "RobustScale": "mlops.features.transforms",
    "Section": "mlops.contract.section",
    "Standardise": "mlops.features.transforms",
    "State": "mlops.features.protocol",
    "Table": "mlops.data.engine.engines",
    "TokenSet": "mlops.features.token_set",
    "Tokenizer": "mlops.features.token_set",
    "Transform": "mlops.features.protocol",
    "Vocabulary": "mlops.features.transforms",
    "Weighted": "mlops.metrics.weighted",
    "check_outputs": "mlops.objectives.outputs",
    "colour_of": "mlops.objectives.figures.axes",
    "last_known": "mlops.features.point_in_time",
    "mean_of_rows": "mlops.objectives.outputs",
    "mean_over_samples": "mlops.metrics.weighted",
    "new_axes": "mlops.objectives.figures.axes",
    "of_sums": "mlops.metrics.weighted",
    "over_drawn_rows": "mlops.metrics.weighted",
    "ratio_of_sums": "mlops.metrics.weighted",
    "trailing_sums": "mlops.features.point_in_time",
    "without_padding": "mlops.objectives.outputs",
}
"""Module of each public name. The names stay, the modules may change."""
