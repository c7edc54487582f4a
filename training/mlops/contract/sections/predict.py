"""The section ``predict``: which model is asked about a snapshot's rows, and where the answers go."""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import Field, field_validator

from mlops.contract.section import STORE_PATTERN, Name, Section, Text


class Predict(Section):
    """Ask a registered model about the rows of a snapshot, once for each data interval."""

    operational: ClassVar[frozenset[str]] = frozenset({"output"})

    registered_model: Name
    version: Text = "champion"
    """An alias, or a number. What an alias means is looked up when the step first begins: an interval that was
    predicted stays as it is when another model becomes the champion."""
    columns: list[Text] | None = Field(default=None, min_length=1)
    """Columns of the snapshot that stand beside the answers; None: all."""
    output: Text | None = None
    """Folder for the answers, relative to the project folder, absolute, or ``s3://bucket/prefix``: a Parquet file for
    each period, such as ``2013-02-09.parquet``, which takes the place of that of an earlier interval. None: in the
    store alone. Rows of a group that lie in several periods are answered together: so many periods are in memory."""

    @field_validator("columns")
    @classmethod
    def _columns_once(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and (twice := next((name for name in value if value.count(name) > 1), None)):
            raise ValueError(f"distinct: {twice!r} is named twice")
        return value

    @field_validator("output")
    @classmethod
    def _a_folder(cls, value: str | None) -> str | None:
        if value is not None and "://" in value and not re.fullmatch(STORE_PATTERN, value):
            raise ValueError("a folder, or s3://bucket/prefix without a / at its end")
        return value
