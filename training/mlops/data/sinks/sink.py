"""The protocol of a sink, and what tables say of where their rows are from."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

import polars as pl
from polars.exceptions import InvalidOperationError

from mlops.contract.step import BadConfigError, StepError
from mlops.data.engine.dtypes import instance_of

PIPELINE: Final = "prediction_pipeline"
PERIOD: Final = "prediction_period"
INTERVAL_END: Final = "prediction_interval_end"
MODEL: Final = "prediction_model"
COLUMNS: Final = (PIPELINE, PERIOD, INTERVAL_END, MODEL)
"""Columns that a table has beside those of the predictions."""
_SIGNED: Final[Mapping[type[pl.DataType], pl.DataType]] = {
    pl.UInt8: pl.Int16(), pl.UInt16: pl.Int32(), pl.UInt32: pl.Int64(), pl.UInt64: pl.Int64(),
}  # fmt: skip


class SinkError(StepError):
    """A sink cannot be written just now. The error is retried, because servers recover, and others write, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where predictions are from."""

    pipeline: str
    interval_end: datetime
    """With an offset."""
    model: str
    """``name/version``"""


class Sink(Protocol):
    @property
    def tabular(self) -> bool:
        """True: rows get :data:`COLUMNS`."""

    @property
    def place(self) -> str:
        """Where it is, for people."""

    def put(self, period: str, data: bytes, origin: Origin) -> bool:
        """
        Put the predictions of a period in the place of those that the pipeline had put there, all or none of them. Done
        twice it is as done once.

        :param data: Parquet
        :return: False where those there are of a later interval, and stay
        :raises BadConfigError: where it cannot hold them
        :raises SinkError: where it cannot be written just now
        """


def with_origin(data: bytes, period: str, origin: Origin) -> pl.DataFrame:
    """
    Return predictions as rows of a table. Their whole numbers have a sign, for tables have no others.

    :raises BadConfigError: naming a column with a number from 2^63 on
    """
    values = {PIPELINE: origin.pipeline, PERIOD: period, MODEL: origin.model}
    end = pl.lit(origin.interval_end).cast(pl.Datetime("us", "UTC")).alias(INTERVAL_END)
    rows = _with_signs(pl.read_parquet(io.BytesIO(data)))
    return rows.with_columns(*(pl.lit(value).alias(name) for name, value in values.items()), end)


def _with_signs(rows: pl.DataFrame) -> pl.DataFrame:
    """Return whole numbers without a sign in the next wider type with one, which lacks only values of UInt64."""
    columns = []
    for name, dtype in rows.schema.items():
        if (signed := _signed(dtype)) == dtype:
            continue
        try:
            columns.append(rows[name].cast(signed))
        except InvalidOperationError as error:
            raise BadConfigError(
                f"predict.output: column {name!r} is {dtype}, and the whole numbers of a table end at {2**63 - 1}: "
                f"{str(error).strip().splitlines()[0]}; cast it in the transform, to text for example, or leave it out "
                "by predict.columns"
            ) from error
    return rows.with_columns(columns)


def _signed(dtype: pl.DataType) -> pl.DataType:
    match dtype:
        case pl.List(inner=inner):
            return pl.List(_signed(instance_of(inner)))
        case pl.Array(inner=inner, size=size):
            return pl.Array(_signed(instance_of(inner)), size)
        case pl.Struct(fields=fields):
            return pl.Struct([pl.Field(field.name, _signed(instance_of(field.dtype))) for field in fields])
    return _SIGNED.get(type(dtype), dtype)
