"""The columns that a pipeline names outside of its recipe, held against those that there are."""

from __future__ import annotations

import polars as pl

from mlops.contract.sections.evaluate import Evaluate
from mlops.contract.sections.ingest import Ingest, TimeSplit
from mlops.contract.sections.validate import MAX_SLICES, Validate
from mlops.data.snapshots.splits import index_of
from mlops.evaluation.slice_metrics import values_of
from mlops.features.source_line import no_column
from mlops.rehearsal.problems import Problems


def check_columns(
    ingest: Ingest, validate: Validate, evaluate: Evaluate, rows: pl.DataFrame, problems: Problems
) -> None:
    """
    Check that what the settings call a column is one, of values that they can be used with.

    :param rows: a sample
    """
    for keys, column in validate.named_columns():
        if column not in rows.columns:
            problems.add("validate", *keys, message=no_column(column, rows.columns))
    for number, column in enumerate(validate.slices):
        if column in rows.columns and (count := rows[column].n_unique()) > MAX_SLICES:
            problems.add(
                "validate", "slices", str(number),
                message=f"column {column!r} has {count:,} values in {rows.height:,} rows: slices are for columns of at "
                f"most {MAX_SLICES:,}",
            )  # fmt: skip
    for setting in ("slices", "fairness"):
        for number, column in enumerate(getattr(evaluate, setting)):
            with problems.caught("evaluate", setting, str(number)):
                values_of(rows, column, setting)
    if ingest.split is not None and not isinstance(ingest.split, TimeSplit):
        with problems.caught("ingest", "split"):
            index_of(rows, ingest.split, "the sample")
