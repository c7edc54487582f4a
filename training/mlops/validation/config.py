"""The settings of the checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlops.validation.drift import DriftConfig
from mlops.validation.serving import ServingLogConfig
from mlops.validation.volume import VolumeConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidateConfig:
    """The section ``validate`` of a pipeline."""

    schema_path: str
    """Relative to the project folder."""
    volume: VolumeConfig | None
    drift: DriftConfig | None
    unique: Sequence[Sequence[str]]
    """Columns that together occur at most once."""
    max_age_hours: float | None
    """How long before the interval's end the newest row may be."""
    slices: Sequence[str]
    """Columns whose every value is a part of the rows to be looked at on its own."""
    slice_tolerance: float
    """By how much a slice's missing share may rise."""
    serving_log: ServingLogConfig | None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ValidateConfig:
        sections = {"volume": VolumeConfig, "drift": DriftConfig, "serving_log": ServingLogConfig}
        given = {name: kind(**config[name]) for name, kind in sections.items() if config[name] is not None}
        return cls(**{**config, **given})
