"""
The public names that recipes and other packages import: ``from mlops import FeatureSet``. Programs that ask a running
Airflow import :mod:`mlops.client`. Other names in here may change.

Each name is imported when it is asked for, so that a step waits for no library that it does not use, and the airflow
runtime, which imports :mod:`mlops.contract`, for none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mlops.contract.public_names import MODULE_OF

if TYPE_CHECKING:
    from mlops.contract.learners import LearnerSpec
    from mlops.contract.metrics import MetricSpec, Parameter
    from mlops.contract.objectives import ObjectiveSpec
    from mlops.contract.rules import RuleSpec
    from mlops.contract.samplers import PrunerSpec, SamplerSpec
    from mlops.contract.section import Section
    from mlops.contract.sources import SourceSection, SourceSpec
    from mlops.contract.step import BadConfigError, BadDataError
    from mlops.data.engine.engines import Table
    from mlops.data.shards.batch import Batch
    from mlops.data.shards.feature_table import FeatureTable
    from mlops.data.sources.source import Piece, Position, Source, SourceError, SourceReader
    from mlops.evaluation.verdict import Measured, RuleOutcome
    from mlops.features.feature_set import FeatureSet
    from mlops.features.images import Image
    from mlops.features.point_in_time import last_known, trailing_sums
    from mlops.features.protocol import Encoder, State, Transform
    from mlops.features.token_set import Bytes, Tokenizer, TokenSet
    from mlops.features.transforms import (
        Bucketise,
        Cross,
        Cyclical,
        Hash,
        Log,
        Missing,
        Passthrough,
        RobustScale,
        Standardise,
        Vocabulary,
    )
    from mlops.features.vectors import Vector
    from mlops.learners.learner import FittedModel, Learner, Lesson
    from mlops.metrics.predictions import Predictions
    from mlops.metrics.weighted import Weighted, mean_over_samples, of_sums, over_drawn_rows, ratio_of_sums
    from mlops.objectives.figures.axes import colour_of, new_axes
    from mlops.objectives.objective import LoadedObjective, Objective
    from mlops.objectives.outputs import check_outputs, mean_of_rows, without_padding
    from mlops.program import Program

__all__ = [
    "BadConfigError",
    "BadDataError",
    "Batch",
    "Bucketise",
    "Bytes",
    "Cross",
    "Cyclical",
    "Encoder",
    "FeatureSet",
    "FeatureTable",
    "FittedModel",
    "Hash",
    "Image",
    "Learner",
    "LearnerSpec",
    "Lesson",
    "LoadedObjective",
    "Log",
    "Measured",
    "MetricSpec",
    "Missing",
    "Objective",
    "ObjectiveSpec",
    "Parameter",
    "Passthrough",
    "Piece",
    "Position",
    "Predictions",
    "Program",
    "PrunerSpec",
    "RobustScale",
    "RuleOutcome",
    "RuleSpec",
    "SamplerSpec",
    "Section",
    "Source",
    "SourceError",
    "SourceReader",
    "SourceSection",
    "SourceSpec",
    "Standardise",
    "State",
    "Table",
    "TokenSet",
    "Tokenizer",
    "Transform",
    "Vector",
    "Vocabulary",
    "Weighted",
    "check_outputs",
    "colour_of",
    "last_known",
    "mean_of_rows",
    "mean_over_samples",
    "new_axes",
    "of_sums",
    "over_drawn_rows",
    "ratio_of_sums",
    "trailing_sums",
    "without_padding",
]


def __getattr__(name: str) -> Any:
    if name not in MODULE_OF:
        raise AttributeError(f"module 'mlops' has no public name {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
