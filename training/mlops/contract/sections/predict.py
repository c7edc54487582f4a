"""The section ``predict``: which model is asked about a snapshot's rows, and where the answers go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from mlops.contract.section import STORE_PATTERN, Name, Section, Text


class FilesOutput(Section):
    """A Parquet file for each period, such as ``2013-02-09.parquet``."""

    kind: Literal["files"] = "files"
    path: Text
    """Folder: relative to the project folder, absolute, or ``s3://bucket/prefix``. Each pipeline has one of its own."""

    @field_validator("path")
    @classmethod
    def _a_folder(cls, value: str) -> str:
        if "://" in value and not re.fullmatch(STORE_PATTERN, value):
            raise ValueError("a folder, or s3://bucket/prefix without a / at its end")
        return value


class DeltaOutput(Section):
    """A Delta table, which is made where there is none; columns that it lacks are added."""

    kind: Literal["delta"]
    path: Text
    """Its folder: relative to the project folder, absolute, or ``s3://bucket/prefix``."""


class SqlOutput(Section):
    """A table of a database, which is made where there is none. A period's rows are replaced in one transaction."""

    kind: Literal["sql"]
    connection: Text
    """Airflow connection of type ``postgres`` or ``sqlite``."""
    table: Text
    """``table``, or ``schema.table``."""

    @field_validator("table")
    @classmethod
    def _a_table(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", value):
            raise ValueError("the name of a table, such as answers or lab.answers")
        return value


def _kind_of_output(value: object) -> str | None:
    if isinstance(value, FilesOutput | DeltaOutput | SqlOutput):
        return f"({value.kind})"
    kind = value.get("kind") if isinstance(value, Mapping) else None
    return f"({kind})" if kind in ("files", "delta", "sql") else None


AnyOutput = Annotated[
    Annotated[FilesOutput, Tag("(files)")]
    | Annotated[DeltaOutput, Tag("(delta)")]
    | Annotated[SqlOutput, Tag("(sql)")],
    Discriminator(
        _kind_of_output,
        custom_error_type="kind_of_output",
        custom_error_message="a folder for files, or of kind files, delta or sql",
    ),
]


class Predict(Section):
    """Ask a registered model about the rows of a snapshot, once for each data interval."""

    operational: ClassVar[frozenset[str]] = frozenset({"output"})

    registered_model: Name
    version: Text = "champion"
    """An alias, or a number. What an alias means is looked up when the step first begins: an interval that was
    predicted stays as it is when another model becomes the champion."""
    columns: list[Text] | None = Field(default=None, min_length=1)
    """Columns of the snapshot that stand beside the answers; None: all. Rows of a group that lie in several periods are
    answered together: so many periods are in memory."""
    output: AnyOutput | None = None
    """Where the answers go beside the store, period by period; a text is the path of ``kind: files``. A period with
    rows takes the place of what an earlier interval said of it; of one that has none any more, that stays. Tables have
    the columns ``prediction_pipeline``, ``prediction_period``, ``prediction_interval_end`` and ``prediction_model``,
    too."""

    @field_validator("columns")
    @classmethod
    def _columns_once(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and (twice := next((name for name in value if value.count(name) > 1), None)):
            raise ValueError(f"distinct: {twice!r} is named twice")
        return value

    @field_validator("output", mode="before")
    @classmethod
    def _files_by_default(cls, value: object) -> object:
        if isinstance(value, str):
            return {"kind": "files", "path": value}
        return {"kind": "files", **value} if isinstance(value, Mapping) else value
