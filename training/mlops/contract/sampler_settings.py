"""The settings of samplers and pruners, ``tune.sampler_settings`` and ``tune.pruner_settings``."""

from __future__ import annotations

from pydantic import Field

from mlops.contract.section import Section


class TpeSettings(Section):
    """The Tree-structured Parzen Estimator (Bergstra et al. 2011)."""

    startup_trials: int = Field(default=10, ge=0)
    """Trials by chance, before those that learn from others."""
    multivariate: bool = False
    """Look at settings together, and not at each by itself (Falkner et al. 2018)."""


class MedianSettings(Section):
    """End a trial whose best value so far is worse than the median of the others at the same epoch."""

    startup_trials: int = Field(default=5, ge=0)
    """Trials that must be complete before any is ended."""
    warmup_epochs: int = Field(default=0, ge=0)
    """Epochs of a trial before which it is not ended."""


class HalvingSettings(Section):
    """Leave one of ``reduction_factor`` trials at each rung (Li et al. 2018, asynchronous successive halving)."""

    min_epochs: int = Field(default=1, ge=1)
    """Epochs that each trial has."""
    reduction_factor: int = Field(default=4, ge=2)


class HyperbandSettings(HalvingSettings):
    """Successive halving with several first rungs (Li et al. 2018)."""

    reduction_factor: int = Field(default=3, ge=2)
