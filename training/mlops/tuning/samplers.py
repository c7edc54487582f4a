"""The samplers of Optuna's that a search may name."""

from __future__ import annotations

from optuna.samplers import BaseSampler, RandomSampler, TPESampler

from mlops.contract.sampler_settings import TpeSettings
from mlops.contract.section import Section


def random_sampler(settings: Section, seed: int) -> BaseSampler:
    return RandomSampler(seed=seed)


def tpe_sampler(settings: TpeSettings, seed: int) -> BaseSampler:
    return TPESampler(seed=seed, n_startup_trials=settings.startup_trials, multivariate=settings.multivariate)
