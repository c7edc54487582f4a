"""Transforms of columns of which a value is several numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from mlops.data.engine.dtypes import instance_of
from mlops.features.protocol import Defined, Encoder, FloatArray, State
from mlops.features.running_statistics import Moments, Statistic


class MultiValued(Defined, ABC):
    """
    What makes a fixed number of features, ``<column>_0``, ``<column>_1`` and so on, of a value.

    A missing value is an error, or with ``missing="indicator"`` all 0, and a feature ``<column>_missing`` says so.
    """

    __slots__ = ()

    column: str
    missing: Literal["error", "indicator"]

    @property
    @abstractmethod
    def num_features(self) -> int:
        """Features of one value."""

    @abstractmethod
    def decode(self, values: pl.Series) -> npt.NDArray[np.float32]:
        """
        Return the features ``[N, K]`` of values, of which none is missing.

        :raises BadDataError: where a value is none that this transform takes
        """

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    def measure(self, rows: pl.DataFrame) -> Statistic:
        return Moments.of(np.where(rows.get_column(self.column).is_null().to_numpy(), np.nan, 0.0))

    def fit(self, statistic: Statistic) -> State:
        assert statistic is not None, "missing values are measured"
        if self.missing == "error" and statistic.num_missing:
            raise self.missing_values(statistic.num_missing, statistic.num_missing + statistic.num_values)
        return {"num_features": self.num_features}

    def encoder(self, state: State) -> Encoder:
        size = self.num_features
        indicator = (f"{self.column}_missing",) if self.missing == "indicator" else ()

        def write(rows: pl.DataFrame, out: FloatArray) -> None:
            values = rows.get_column(self.column)
            present = values.is_not_null().to_numpy()
            if not present.all() and not indicator:
                raise self.missing_values(int((~present).sum()), len(values))
            out[:size, ~present] = 0.0
            if present.any():
                out[:size, present] = self.decode(values.drop_nulls()).T
            if indicator:
                out[size] = ~present

        return Encoder((*(f"{self.column}_{place}" for place in range(size)), *indicator), write)


@dataclass(frozen=True, slots=True)
class Vector(MultiValued):
    """
    The numbers of a vector as they are, such as an embedding's.

    :param size: numbers of each vector; one of another size is an error
    """

    column: str
    size: int
    missing: Literal["error", "indicator"] = "error"

    @property
    def num_features(self) -> int:
        return self.size

    def check(self, schema: Mapping[str, pl.DataType]) -> None:
        dtype = schema[self.column]
        inner = dtype.inner if isinstance(dtype, pl.List | pl.Array) else None
        if dtype != pl.Null and (inner is None or not instance_of(inner).is_numeric()):
            raise self.bad_config(f"the column is {dtype}, not a vector of numbers")

    def decode(self, values: pl.Series) -> npt.NDArray[np.float32]:
        lists = values.cast(pl.List(pl.Float32))
        if len(wrong := (sizes := lists.list.len()).filter(sizes != self.size)):
            raise self.bad_data(
                f"{len(wrong)} of {len(values)} vectors do not have {self.size} numbers, the first has {wrong[0]}"
            )
        found: npt.NDArray[np.float32] = lists.list.explode().to_numpy().reshape(len(values), self.size)
        return found
