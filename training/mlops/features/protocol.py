"""The protocol of a fitted transform: columns in, float32 features out, and state that is plain JSON in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from mlops.contract.step import BadConfigError, BadDataError
from mlops.features.running_statistics import Statistic
from mlops.features.source_line import SourceLine, line_of_caller

State = dict[str, Any]
Missing = float | Literal["error", "indicator"]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Encoder:
    """A fitted transform, prepared once for many rows."""

    names: tuple[str, ...]
    """Names of its K features, in order."""
    write: Callable[[pl.DataFrame, FloatArray], None]
    """
    Function that takes N rows and fills ``[K, N]``, in several threads at once. It works row by row: a row alone must
    give the same bits as among others.
    """
    ids: bool = False
    """True: the features are ids of categories, whose order says nothing."""


class Transform(Protocol):
    """
    The protocol of a transform. Called by the feature set: ``check`` for every new set of columns; ``measure`` on each
    batch of the training split, in any process; ``fit`` once, with the sum of what was measured; ``encoder`` wherever
    the state is used.
    """

    @property
    def inputs(self) -> Sequence[str]:
        """Columns that the transform reads."""

    @property
    def line(self) -> SourceLine: ...

    def check(self, schema: Mapping[str, pl.DataType]) -> None:
        """
        Check the columns that the transform reads.

        :raises BadConfigError: where a column has a type that this transform cannot take
        """

    def measure(self, rows: pl.DataFrame) -> Statistic: ...

    def fit(self, statistic: Statistic) -> State:
        """Return the fitted state as JSON."""

    def encoder(self, state: State) -> Encoder: ...


@dataclass(frozen=True, slots=True)
class Defined:
    """A definition that knows its line in the source."""

    line: SourceLine = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "line", line_of_caller())

    def bad_config(self, message: str) -> BadConfigError:
        return BadConfigError(f"{described(self)}: {message}")

    def bad_data(self, message: str) -> BadDataError:
        return BadDataError(f"{described(self)}: {message}")

    def missing_values(self, count: int, total: int) -> BadDataError:
        return self.bad_data(
            f'{count} of {total} values are missing; say what they mean, with missing="indicator" or, for a number, '
            "missing=<value>"
        )


def described(transform: Any) -> str:
    """Describe a transform for messages: ``include/flights/features.py:24: Standardise('hour')``."""
    columns = ", ".join(map(repr, transform.inputs))
    return f"{transform.line}: {type(transform).__name__}({columns})"
