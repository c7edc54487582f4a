"""The grammar of a pipeline's ``tune``: which settings of the training are searched, how, and for how long."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, TypeVar

from pydantic import Discriminator, Field, Tag, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from mlops.contract.samplers import GRID, PRUNERS, SAMPLERS, PrunerName, SamplerName
from mlops.contract.section import FINITE, Json, Number, Section
from mlops.contract.settings import flat_settings, replaced_settings

MAX_TRIALS: Final = 1024
"""Airflow's own limit for the tasks that one is mapped to (``[core] max_map_length``)."""


class Range(Section):
    """Numbers from ``low`` to ``high``, both included; whole ones where both are, and the setting is no fraction."""

    low: Number
    high: Number
    log: bool = False
    """Draw evenly over the orders of magnitude."""
    step: Number | None = Field(default=None, gt=0)
    """Only ``low`` and multiples of this above it."""

    @model_validator(mode="after")
    def _something_between(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"a range: low must be < high, got low {self.low} and high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"a range of positive numbers where log is true: low must be > 0, got {self.low}")
        if self.log and self.step is not None:
            raise ValueError("consistent: log and step do not go together; remove one of the two")
        # Of decimal fractions the difference may fall short by a bit.
        if self.step is not None and self.step > (self.high - self.low) * (1 + 1e-9):
            raise ValueError(
                f"a range of two values or more: step must be <= high - low, got low {self.low}, high {self.high} "
                f"and step {self.step}"
            )
        return self

    @property
    def whole(self) -> bool:
        return all(isinstance(bound, int) for bound in (self.low, self.high, self.step or 1))

    @property
    def num_steps(self) -> int:
        """Number of values of a grid."""
        return int((self.high - self.low) // (self.step or 1)) + 1

    def values(self) -> list[Any]:
        """Return values of the setting that the training must accept."""
        return [self.low, self.high]

    def of(self, values: list[Any]) -> Range:
        """:param values: as the training took them"""
        low, high = values
        if isinstance(low, bool) or not isinstance(low, int | float):
            raise ValueError("choices, for the setting is no number")
        if isinstance(low, int) and isinstance(high, int) and not isinstance(self.step or 1, int):
            raise ValueError(f"whole numbers, but step is {self.step}")
        return self.model_copy(update={"low": low, "high": high})


class Choices(Section):
    """One of a few values."""

    choices: list[Annotated[bool | int | float | str | None, FINITE]] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_once(self) -> Choices:
        _check_different(self.choices)
        return self

    def values(self) -> list[Any]:
        return list(self.choices)

    def of(self, values: list[Any]) -> Choices:
        _check_different(values)
        return self.model_copy(update={"choices": values})


def _check_different(choices: list[Any]) -> None:
    """As the search tells them apart: to Python 1, 1.0 and True are one."""
    if any(choice in choices[:index] for index, choice in enumerate(choices)):
        raise ValueError(f"different from each other: choices are {choices}")


def _kind_of_dimension(value: object) -> str:
    choices = isinstance(value, Choices) or (isinstance(value, Mapping) and "choices" in value)
    return "(Choices)" if choices else "(Range)"


Dimension = Annotated[
    Annotated[Range, Tag("(Range)")] | Annotated[Choices, Tag("(Choices)")], Discriminator(_kind_of_dimension)
]


class Tune(Section):
    """Search for the settings of the training that give the best metric; ``train`` then trains with them."""

    space: dict[str, Dimension] = Field(min_length=1)
    """By the setting of ``train``; of parts with dots: ``schedule.warmup_steps``, ``model_args.hidden``."""
    sampler: SamplerName = "tpe"
    """What chooses the next trial's settings: ``tpe``, from those before it (Tree-structured Parzen Estimator);
    ``random``; ``grid``, each combination once; or a sampler of an installed package, or ``package.module:NAME``."""
    sampler_settings: dict[str, Json] = Field(default={}, validate_default=True)
    """Settings of the sampler."""
    pruner: PrunerName = "median"
    """What ends a trial early, looking at its metric after each epoch and at other trials': ``median``,
    ``successive_halving``, ``hyperband`` or ``none``; or one of an installed package, or ``package.module:NAME``."""
    pruner_settings: dict[str, Json] = Field(default={}, validate_default=True)
    """Settings of the pruner."""
    trials: int | None = Field(default=None, ge=1, le=MAX_TRIALS)
    """At most so many. None: 20, or all combinations of a grid."""
    hours: float | None = Field(default=None, gt=0)
    """No trial begins so long after the first one has."""
    gpu_hours: float | None = Field(default=None, gt=0)
    """No trial begins when all together have computed for so long: hours times GPUs."""
    parallel: int = Field(default=1, ge=1)
    """Trials at once."""
    connection: str | None = None
    """Airflow connection id of the PostgreSQL database that keeps the studies; None: a SQLite file in the store."""
    seed: int = Field(default=0, ge=0)

    @property
    def num_trials(self) -> int:
        combinations = math.prod(self._combinations()) if self.sampler == GRID else None
        if combinations is None:
            return 20 if self.trials is None else self.trials
        return min(combinations, self.trials or combinations)

    def _combinations(self) -> Iterator[int]:
        for dimension in self.space.values():
            if isinstance(dimension, Choices):
                yield len(dimension.choices)
            else:
                yield dimension.num_steps

    @field_validator("sampler_settings")
    @classmethod
    def _settings_of_the_sampler(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        sampler = info.data.get("sampler")
        return value if sampler is None else SAMPLERS.checked_settings(sampler, value)

    @field_validator("pruner_settings")
    @classmethod
    def _settings_of_the_pruner(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        pruner = info.data.get("pruner")
        return value if pruner is None else PRUNERS.checked_settings(pruner, value)

    @model_validator(mode="after")
    def _a_grid_is_finite(self) -> Tune:
        if self.sampler != GRID:
            return self
        for name, dimension in self.space.items():
            if isinstance(dimension, Range) and (dimension.log or not dimension.whole):
                raise ValueError(f"content with a grid: give space.{name} choices, or whole numbers without log")
        if self.num_trials > MAX_TRIALS:
            raise ValueError(
                f"content with {MAX_TRIALS} trials, but the grid has {self.num_trials} combinations; give trials"
            )
        return self


TuneT = TypeVar("TuneT", bound=Tune)


class TunedSection(Section):
    """A section whose settings may be searched."""

    untunable: ClassVar[frozenset[str]] = frozenset()
    """Settings that have to be the same in all trials."""

    def why_untunable(self) -> str | None:
        """What stands in the way of a search; None: nothing."""
        return None


def fitted(tune: TuneT, train: TunedSection) -> TuneT:
    """
    The search with the number of its trials, and values as the training takes them: ``1`` of a fraction as ``1.0``.

    :raises ValidationError: with a line for each setting that the training does not know, or whose values it refuses
    """
    if (reason := train.why_untunable()) is not None:
        raise ValueError(reason)
    given = train.model_dump(mode="json")
    base = flat_settings(given)
    space: dict[str, Dimension] = {}
    problems: list[InitErrorDetails] = []
    for name, dimension in tune.space.items():
        try:
            _check_name(name, base, train)
            space[name] = _taken(dimension, name, train, given)
            if tune.sampler == GRID and isinstance(dimension, Range) and not _is_grid(space[name]):
                # A grid over fractions has no end, and the file means the whole numbers.
                space[name] = _taken(_each_of(dimension), name, train, given)
        except ValueError as error:
            problems.append(_problem(name, error))
    if problems:
        raise ValidationError.from_exception_data("tune", problems)
    return tune.model_copy(update={"space": space, "trials": tune.num_trials})


def _taken(dimension: Dimension, name: str, train: TunedSection, given: Mapping[str, Any]) -> Dimension:
    """
    Return a dimension with its values as the training takes them.

    :param given: the training's settings, as JSON
    :raises ValueError: where it refuses one
    """
    taken = (type(train).model_validate(replaced_settings(given, {name: value})) for value in dimension.values())
    return dimension.of([flat_settings(section.model_dump())[name] for section in taken])


def _is_grid(dimension: Dimension) -> bool:
    return isinstance(dimension, Choices) or dimension.whole


def _each_of(whole: Range) -> Choices:
    if whole.num_steps > MAX_TRIALS:
        raise ValueError(
            f"given as choices, for a grid of {whole.num_steps} fractions is too long, got low {whole.low} and high "
            f"{whole.high}"
        )
    return Choices(choices=[whole.low + number * (whole.step or 1) for number in range(whole.num_steps)])


def _check_name(name: str, base: Mapping[str, Any], train: TunedSection) -> None:
    top = name.partition(".")[0]
    if top in train.untunable:
        raise ValueError(f"something that may differ between trials; {top} is the same in all of them")
    if name not in base:
        near = difflib.get_close_matches(name, base, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "give it a value there too, or remove it here"
        raise ValueError(f"a setting that train has; {hint}")


def _problem(name: str, error: ValueError) -> InitErrorDetails:
    reason, found = str(error), {}
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        reason = str(first["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
        reason, found = f"of values that train takes: {reason}", first["input"]
    message = PydanticCustomError("untunable", "{reason}", {"reason": reason})
    return {"type": message, "loc": ("space", name), "input": found}
