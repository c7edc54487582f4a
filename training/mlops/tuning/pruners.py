"""The pruners of Optuna's that a search may name. Their steps are epochs."""

from __future__ import annotations

from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner

from mlops.contract.sampler_settings import HalvingSettings, HyperbandSettings, MedianSettings
from mlops.contract.section import Section


def no_pruner(settings: Section, most_epochs: int) -> BasePruner:
    return NopPruner()


def median_pruner(settings: MedianSettings, most_epochs: int) -> BasePruner:
    return MedianPruner(n_startup_trials=settings.startup_trials, n_warmup_steps=settings.warmup_epochs)


def halving_pruner(settings: HalvingSettings, most_epochs: int) -> BasePruner:
    # Left to Optuna's guess of the first rung, the first trials would be compared with nobody.
    return SuccessiveHalvingPruner(min_resource=settings.min_epochs, reduction_factor=settings.reduction_factor)


def hyperband_pruner(settings: HyperbandSettings, most_epochs: int) -> BasePruner:
    return HyperbandPruner(
        min_resource=settings.min_epochs, max_resource=most_epochs, reduction_factor=settings.reduction_factor
    )
