"""Which settings a trial has: a function of the seed and its number, and with TPE of the trials before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import NopPruner
from optuna.samplers import BaseSampler

from mlops.code import load_extension, resolved
from mlops.contract.extensions import ExtensionPoint
from mlops.contract.refs import digest_of
from mlops.contract.samplers import GRID, SAMPLERS, PrunerSpec, SamplerSpec
from mlops.contract.section import check_section
from mlops.contract.sections.steps import TuneStep
from mlops.contract.sections.tune import Choices, Dimension
from mlops.contract.step import BadConfigError
from mlops.data.shards.sampler import Permutation

NUMBER: Final = "number"
"""Attribute of a trial: that of its task, by which a retry finds it. The database counts in the order of beginnings."""
_MOST_POINTS: Final = 1 << 62
"""Most points of a grid that a permutation can shuffle."""


def distributions(space: Mapping[str, Dimension]) -> dict[str, BaseDistribution]:
    return {name: _distribution(dimension) for name, dimension in sorted(space.items())}


def _distribution(dimension: Dimension) -> BaseDistribution:
    if isinstance(dimension, Choices):
        return CategoricalDistribution(dimension.choices)
    low, high, step = dimension.low, dimension.high, dimension.step
    if isinstance(low, int) and isinstance(high, int) and isinstance(step, int | None):
        return IntDistribution(low, high, log=dimension.log, step=step or 1)
    return FloatDistribution(low, high, log=dimension.log, step=step)


def draw(study: optuna.Study, config: TuneStep, number: int, own: Callable[[str], object]) -> dict[str, Any]:
    """
    Settings for a trial, drawn on a copy of the study: nothing of them is stored before all of them are.

    A trial has a random generator of its own, so that random ones are the same whatever came before them.

    :param own: loads code of the recipe by its import path
    """
    space = distributions(config.space)
    if config.sampler == GRID:
        return _grid(space, config.seed, number)
    seed = int(digest_of([config.seed, number])[:8], 16)
    sampler: BaseSampler = loaded(SAMPLERS, config.sampler, config.sampler_settings, own)(seed)
    copy = optuna.create_study(direction=study.direction, sampler=sampler, pruner=NopPruner())
    # Nor one of those that somebody else has put there to be tried.
    copy.add_trials([trial for trial in study.get_trials(deepcopy=False) if NUMBER in trial.user_attrs])
    return copy.ask(space).params


def loaded(
    point: ExtensionPoint, name: str, settings: Mapping[str, Any], own: Callable[[str], object]
) -> Callable[[int], Any]:
    """
    Return what makes a sampler of a seed, or a pruner of the most epochs.

    :param own: loads code of the recipe by its import path
    :raises BadConfigError: where there is none of that name, or its settings are wrong
    """
    declaration: Any = SamplerSpec if point is SAMPLERS else PrunerSpec
    spec = load_extension(point, name, declaration, own)
    section = check_section(spec.section, settings, f"tune.{point.kind}_settings")
    if spec.make is None:
        raise BadConfigError(f"tune.{point.kind}: {name} makes none; give it a function")
    return partial(resolved(spec.make, own), section)


def _grid(space: Mapping[str, BaseDistribution], seed: int, number: int) -> dict[str, Any]:
    """Each combination once, shuffled, so that some of them are a sample of all; none is made but the one asked for."""
    axes = {name: _points(distribution) for name, distribution in space.items()}
    shuffled = Permutation(min(math.prod(map(len, axes.values())), _MOST_POINTS), seed)
    index, point = int(shuffled(np.array([number]))[0]), {}
    for name, points in axes.items():
        index, place = divmod(index, len(points))
        point[name] = points[place]
    return point


def _points(distribution: BaseDistribution) -> Sequence[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    assert isinstance(distribution, IntDistribution), "the spec takes nothing else"
    return range(distribution.low, distribution.high + 1, distribution.step)
