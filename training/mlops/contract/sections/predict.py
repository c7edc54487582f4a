"""The section ``predict``: which model is asked about a snapshot's rows, and where the answers go."""

from __future__ import annotations

from pydantic import Field

from mlops.contract.section import Name, Section, Text


class Predict(Section):
    """Ask a registered model about the rows of a snapshot, once for each data interval."""

    registered_model: Name
    version: Text = "champion"
    """An alias, or a number. What an alias means is looked up when the step first begins: an interval that was
    predicted stays as it is when another model becomes the champion."""
    columns: list[str] | None = Field(default=None, min_length=1)
    """Columns of the snapshot that stand beside the answers; None: all."""
    output: Text | None = None
    """Folder for the answers, relative to the project folder, absolute, or ``s3://bucket/prefix``: a Parquet file for
    each period, such as ``2013-02-09.parquet``, which takes the place of an earlier one. None: in the store alone."""
