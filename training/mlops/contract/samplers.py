"""What chooses the settings of a search's trials, and what ends them early: ours, and what other packages add."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, StringConstraints

from mlops.contract.extensions import ExtensionPoint
from mlops.contract.sampler_settings import HalvingSettings, HyperbandSettings, MedianSettings, TpeSettings
from mlops.contract.section import EXTENSION_PATTERN, NoSettings, Section

GRID: Final = "grid"
"""Each combination once: how many trials there are follows from the space."""


@dataclass(frozen=True, kw_only=True)
class SamplerSpec:
    """A sampler of Optuna's, as far as it is known without Optuna."""

    make: str | Callable[..., Any] | None
    """
    ``make(settings, seed) -> optuna.samplers.BaseSampler``, or its import path in the training runtime. It is called
    for each trial anew, with a seed of the trial's own; what other trials found is in the study that the sampler is
    given. None: the number of a trial alone says which settings it has.
    """
    section: type[Section] = NoSettings
    """What ``tune.sampler_settings`` may have."""


@dataclass(frozen=True, kw_only=True)
class PrunerSpec:
    """A pruner of Optuna's, as far as it is known without Optuna."""

    make: str | Callable[..., Any]
    """``make(settings, most_epochs) -> optuna.pruners.BasePruner``, or its import path in the training runtime. A trial
    reports its metric after each epoch, from 1 to ``most_epochs``."""
    section: type[Section] = NoSettings
    """What ``tune.pruner_settings`` may have."""


_OURS: Final = "mlops.tuning"
EACH_ONCE = SamplerSpec(make=None)
RANDOM = SamplerSpec(make=f"{_OURS}.samplers:random_sampler")
TPE = SamplerSpec(make=f"{_OURS}.samplers:tpe_sampler", section=TpeSettings)
NONE = PrunerSpec(make=f"{_OURS}.pruners:no_pruner")
MEDIAN = PrunerSpec(make=f"{_OURS}.pruners:median_pruner", section=MedianSettings)
SUCCESSIVE_HALVING = PrunerSpec(make=f"{_OURS}.pruners:halving_pruner", section=HalvingSettings)
HYPERBAND = PrunerSpec(make=f"{_OURS}.pruners:hyperband_pruner", section=HyperbandSettings)

SAMPLERS: Final = ExtensionPoint(
    kind="sampler",
    group="mlops.samplers",
    builtin={
        "tpe": "mlops.contract.samplers:TPE",
        "random": "mlops.contract.samplers:RANDOM",
        GRID: "mlops.contract.samplers:EACH_ONCE",
    },
    attributes=("make", "section"),
)
PRUNERS: Final = ExtensionPoint(
    kind="pruner",
    group="mlops.pruners",
    builtin={
        "none": "mlops.contract.samplers:NONE",
        "median": "mlops.contract.samplers:MEDIAN",
        "successive_halving": "mlops.contract.samplers:SUCCESSIVE_HALVING",
        "hyperband": "mlops.contract.samplers:HYPERBAND",
    },
    attributes=("make", "section"),
)


SamplerName = Annotated[str, StringConstraints(pattern=EXTENSION_PATTERN), BeforeValidator(SAMPLERS.check_short)]
PrunerName = Annotated[str, StringConstraints(pattern=EXTENSION_PATTERN), BeforeValidator(PRUNERS.check_short)]
