"""The columns that a pipeline names outside of its recipe, held against those that there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from mlops.contract.sections.evaluate import Evaluate
from mlops.contract.sections.ingest import Ingest, TimeSplit
from mlops.contract.sections.validate import Validate
from mlops.data.snapshots.splits import index_of
from mlops.evaluation.slice_metrics import values_of
from mlops.features.source_line import no_column
from mlops.rehearsal.problems import Problems

MOST_SLICES: Final = 1_000
"""As :data:`mlops.validation.slice_checks.MAX_SLICES`, whose runtime is another."""


def check_columns(
    ingest: Ingest, validate: Validate, evaluate: Evaluate, rows: pl.DataFrame, problems: Problems
) -> None:
    """
    Check that what the settings call a column is one, of values that they can be used with.

    :param rows: a sample
    """
    for keys, column in _of_validate(validate):
        if column not in rows.columns:
            problems.add(*keys, message=no_column(column, rows.columns))
    for number, column in enumerate(validate.slices):
        if column in rows.columns and (count := rows[column].n_unique()) > MOST_SLICES:
            problems.add(
                "validate", "slices", str(number),
                message=f"column {column!r} has {count:,} values in {rows.height:,} rows: slices are for columns of at "
                f"most {MOST_SLICES:,}",
            )  # fmt: skip
    for setting in ("slices", "fairness"):
        for number, column in enumerate(getattr(evaluate, setting)):
            with problems.caught("evaluate", setting, str(number)):
                values_of(rows, column, setting)
    if not isinstance(ingest.split, TimeSplit):
        with problems.caught("ingest", "split"):
            index_of(rows, ingest.split, "the sample")


def _of_validate(validate: Validate) -> Iterator[tuple[tuple[str, ...], str]]:
    lists: dict[tuple[str, ...], Any] = {("slices",): validate.slices}
    lists |= {("unique", str(number)): key for number, key in enumerate(validate.unique)}
    if validate.newest is not None:
        lists["newest", "leave_out"] = validate.newest.leave_out
    for place, columns in lists.items():
        for number, column in enumerate(columns):
            yield ("validate", *place, str(number)), column
    for column in validate.drift.columns if validate.drift is not None else ():
        yield ("validate", "drift", "columns", column), column
