"""The protocol of a sink, and what tables say of where their rows are from."""

from __future__ import annotations

import io
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

import polars as pl

from mlops.contract.step import StepError

PIPELINE: Final = "prediction_pipeline"
PERIOD: Final = "prediction_period"
INTERVAL_END: Final = "prediction_interval_end"
MODEL: Final = "prediction_model"
COLUMNS: Final = (PIPELINE, PERIOD, INTERVAL_END, MODEL)
"""Columns that a table has beside those of the predictions."""


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
    """Return predictions as rows of a table."""
    values = {PIPELINE: origin.pipeline, PERIOD: period, MODEL: origin.model}
    end = pl.lit(origin.interval_end).cast(pl.Datetime("us", "UTC")).alias(INTERVAL_END)
    rows = pl.read_parquet(io.BytesIO(data))
    return rows.with_columns(*(pl.lit(value).alias(name) for name, value in values.items()), end)
