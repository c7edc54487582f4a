"""A sampler that models the metric by a Gaussian process, and a pruner that ends trials that no longer get better."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from mlops import PrunerSpec, SamplerSpec, Section

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler


class GaussianProcess(Section):
    """Bayesian optimisation, for searches of few, expensive trials."""

    startup_trials: int = Field(default=10, ge=1)
    """Trials by chance, before the first model."""


class Patience(Section):
    """End a trial whose metric has not become better for some epochs."""

    epochs: int = Field(default=3, ge=1)


def make_sampler(settings: GaussianProcess, seed: int) -> BaseSampler:
    from optuna.samplers import GPSampler  # the scheduler, which reads the settings, has no Optuna

    return GPSampler(seed=seed, n_startup_trials=settings.startup_trials)


def make_pruner(settings: Patience, most_epochs: int) -> BasePruner:
    from optuna.pruners import PatientPruner

    return PatientPruner(None, patience=min(settings.epochs, most_epochs))


SAMPLER = SamplerSpec(make=make_sampler, section=GaussianProcess)
PRUNER = PrunerSpec(make=make_pruner, section=Patience)
