"""A table in a file, as far as a first recipe needs to know it."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa

from mlops.contract.section import check_section
from mlops.contract.sources import FileSource
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.engine.dtypes import zone_of
from mlops.data.sources import SourceTable, read_source
from mlops.data.sources.numerals import has_comma
from mlops.data.sources.records import instant
from mlops.data.sources.window import Window

MOST_ROWS: Final = 200_000
"""Rows whose values are looked at, the first of the table."""
_CODECS: Final = {".gz": "gzip", ".zst": "zstd"}
_SEPARATORS: Final = (",", ";", "\t", "|")
_CENTURY: Final = 36_500
_LONGEST_LINE: Final = 1 << 20
"""Most bytes of the first line that are looked at."""
_SURELY: Final = 0.95
_ROUNDS: Final = 8
"""Readings of a file, at most: each may show a text that stands for no number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    rows: pl.DataFrame
    """The first of its rows, in the types that the values show; what is no number is null."""
    all_rows: pl.LazyFrame
    source: Mapping[str, Any]
    """Settings of ``ingest.sources`` by which it was read, without its times."""
    num_rows: int

    def instants(self) -> list[str]:
        """The columns that say when: nearly all of their values are instants, or dates."""
        found = []
        for name, dtype in self.rows.schema.items():
            if dtype == pl.String or dtype == pl.Date or isinstance(dtype, pl.Datetime):
                num_values = self.rows.height - self.rows.get_column(name).null_count()
                num_times = len(self._instants(self.rows.lazy(), name).drop_nulls())
                if num_times and num_times >= _SURELY * num_values:
                    found.append(name)
        return found

    def times(self, name: str) -> pl.Series:
        """A column of all rows as instants; a date, or a time without an offset, as the same one of UTC."""
        return self._instants(self.all_rows, name)

    def lacks_offset(self, name: str) -> bool:
        """Whether an instant of a column has no offset, so that somebody must say whose clock it is."""
        dtype = self.rows.schema[name]
        if dtype == pl.String:
            found = self.rows.select(instant(name, dtype, "UTC").alias("all"), instant(name, dtype, None).alias("some"))
            return found["some"].null_count() > found["all"].null_count()
        return zone_of(dtype) is None

    def _instants(self, rows: pl.LazyFrame, name: str) -> pl.Series:
        return rows.select(instant(name, self.rows.schema[name], "UTC")).collect(engine="streaming").to_series()


def read_table(path: Path, home: Path, scratch: Path, now: datetime) -> Table:
    """
    Read a file.

    :param scratch: folder for what is unpacked, to be kept as long as the table
    :raises BadConfigError: where there is no such file
    :raises BadDataError: where it cannot be read as a table, or has no rows
    """
    try:
        if not path.is_file():
            raise BadConfigError(f"{path}: there is no such file")
        path.open("rb").close()
    except OSError as error:
        raise BadDataError(f"{path}: cannot be read: {error.strerror}") from error
    source: dict[str, Any] = {"path": _called(path, home)}
    if ".csv" in path.suffixes and (separator := _separator(path)) != ",":
        source["separator"] = separator
    for number in range(_ROUNDS):
        table = _read(source, home, scratch / f"{number}", now)
        if not _corrected(source, table):
            break
    lazy: pl.LazyFrame = table.rows.to_native()
    rows = lazy.head(MOST_ROWS).collect(engine="streaming")
    if not rows.height:
        raise BadDataError(f"{path}: the table has no rows")
    return Table(
        rows=rows.with_columns(
            pl.col(pl.Decimal).cast(pl.Float64), pl.col(pl.Float32, pl.Float64).fill_nan(None)
        ),
        all_rows=lazy,
        source=source,
        num_rows=table.provenance["num_rows"],
    )  # fmt: skip


def _called(path: Path, home: Path) -> str:
    """The path as a pipeline names it: relative to the project folder where it lies there."""
    whole = path.resolve()
    return str(whole.relative_to(home.resolve())) if whole.is_relative_to(home.resolve()) else str(whole)


def _separator(path: Path) -> str:
    """
    What is between the fields of the first line; ``,`` where a packed file is none that the source takes.

    :raises BadDataError: where it cannot be unpacked
    """
    try:
        with contextlib.ExitStack() as opened:
            if path.suffix == ".zip":
                archive = opened.enter_context(zipfile.ZipFile(path))
                members = [name for name in archive.namelist() if not name.endswith("/")]
                if len(members) != 1:  # the source says so
                    return ","
                file: Any = opened.enter_context(archive.open(members[0]))
            elif path.suffix in _CODECS:
                file = opened.enter_context(pa.input_stream(str(path), compression=_CODECS[path.suffix]))
            elif path.suffix == ".csv":
                file = opened.enter_context(path.open("rb"))
            else:
                return ","
            lines = file.read(_LONGEST_LINE).splitlines()
    # RuntimeError: a zip with a password, or packed in a way that Python does not know.
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise BadDataError(
            f"{path}: cannot be read as {path.suffix}: {error}; pack it again, or name it by what it is"
        ) from error
    head = lines[0].decode(errors="replace") if lines else ""
    return max(_SEPARATORS, key=head.count)


def _corrected(source: dict[str, Any], table: SourceTable) -> bool:
    """Change how a file is read, where that is why a column of numbers is text; False where there is nothing to do."""
    for other in table.spoilt.values():
        if has_comma(other):
            if "decimal" not in source and source.get("separator", ",") != ",":
                source["decimal"] = ","
                return True
        elif other not in (known := source.get("null_values", ["NA"])):
            source["null_values"] = [*known, other]
            return True
    return False


def _read(source: Mapping[str, Any], home: Path, scratch: Path, now: datetime) -> SourceTable:
    settings = check_section(FileSource, dict(source), "ingest.sources.table")
    window = Window.before(now, _CENTURY, "UTC", begun=True)
    return read_source("table", settings, home=home, scratch=scratch, window=window, engine="polars")
