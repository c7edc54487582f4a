"""Which settings a trial has: a function of the seed and its number, and with TPE of the trials before it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any, Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler

from mlops_provider.refs import digest_of
from training.tuning.config import TuneConfig

_SAMPLERS: Final[Mapping[str, type[RandomSampler | TPESampler]]] = {"random": RandomSampler, "tpe": TPESampler}


def distributions(space: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    return {name: _distribution(dimension) for name, dimension in sorted(space.items())}


def _distribution(dimension: Mapping[str, Any]) -> BaseDistribution:
    if (choices := dimension.get("choices")) is not None:
        return CategoricalDistribution(choices)
    low, high, log, step = (dimension[name] for name in ("low", "high", "log", "step"))
    if all(isinstance(bound, int) for bound in (low, high, step or 1)):
        return IntDistribution(low, high, log=log, step=step or 1)
    return FloatDistribution(low, high, log=log, step=step)


def draw(study: optuna.Study, config: TuneConfig, number: int) -> dict[str, Any]:
    """
    Settings for a trial, drawn on a copy of the study: nothing of them is stored before all of them are.

    A trial has a random generator of its own, so that random ones are the same whatever came before them.
    """
    space = distributions(config.space)
    if config.sampler == "grid":
        return _grid(space, config.seed)[number]
    seed = int(digest_of([config.seed, number])[:8], 16)
    sampler: BaseSampler = _SAMPLERS[config.sampler](seed=seed)
    copy = optuna.create_study(direction=study.direction, sampler=sampler, pruner=NopPruner())
    copy.add_trials(study.get_trials(deepcopy=False))
    return copy.ask(space).params


def _grid(space: Mapping[str, BaseDistribution], seed: int) -> list[dict[str, Any]]:
    """Each combination once, shuffled, so that some of them are a sample of all."""
    axes = [_points(distribution) for distribution in space.values()]
    points = [dict(zip(space, values, strict=True)) for values in itertools.product(*axes)]
    random.Random(seed).shuffle(points)
    return points


def _points(distribution: BaseDistribution) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, IntDistribution), "the spec takes nothing else"
    return list(range(distribution.low, distribution.high + 1, distribution.step))
