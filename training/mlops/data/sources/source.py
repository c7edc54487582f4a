"""What a source is: something that says exactly what it reads, and reads it in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from zipfile import BadZipFile

import polars as pl
from polars.exceptions import PolarsError

from mlops.contract.sections import sources as sections
from mlops.contract.step import BadDataError, StepError
from mlops.data.sources.records import Records

Position = Mapping[str, Any]
"""Exactly what is read, as JSON: digests of files, a table's version, ids, offsets, a transaction's snapshot."""
DOCUMENT = "document"
"""Column with one JSON object a row, where a source has :attr:`Source.documents`."""


class SourceError(StepError):
    """A source cannot be read just now: retried, for servers come back."""


class Piece(Protocol):
    """A part of a source, to be read in any process: picklable, with all it needs in itself."""

    @property
    def place(self) -> str:
        """What messages call it, e.g. the file's name."""

    def __call__(self) -> pl.LazyFrame: ...


class Source(Protocol):
    """
    One table somewhere. The step's process calls ``position``, then ``pieces`` with it, and ``finish`` when all
    pieces have been read; a piece is called by whoever reads it, maybe more than once.
    """

    @property
    def documents(self) -> bool:
        """Whether a piece has its rows as JSON, in the column :data:`DOCUMENT`."""

    @property
    def text(self) -> bool:
        """Whether columns of text get the types that their values show."""

    @property
    def local(self) -> bool:
        """Whether a piece, once read, is a file on this machine that can be scanned as it stands."""

    def position(self) -> Position:
        """Settle what is read."""

    def pieces(self, position: Position, scratch: Path) -> Sequence[Piece]:
        """
        Divide it.

        :param scratch: folder for what must be fetched; made by whoever needs it
        """

    def finish(self, position: Position) -> None:
        """
        Let go of it.

        :raises SourceError: where it was not what the position says any more, while it was read
        """


SettingsT = TypeVar("SettingsT", bound=sections.SourceSection)


@dataclass(frozen=True, kw_only=True)
class SourceReader(Generic[SettingsT]):
    """What all kinds of sources are told."""

    name: str
    """Key in ``ingest.sources``."""
    home: Path
    """Folder where relative paths start."""
    records: Records
    """Which rows count; a source may leave the others out where that spares work."""
    settings: SettingsT
    """Settings of this kind of source, from ``ingest.sources``."""

    def finish(self, position: Position) -> None:
        """Nothing was held."""


@contextmanager
def reading(name: str, place: str) -> Iterator[None]:
    """
    Name the source and the place where its data cannot be read.

    :raises BadDataError: naming both
    """
    try:
        yield
    except (PolarsError, BadZipFile, EOFError, UnicodeDecodeError) as error:
        raise BadDataError(f"source {name!r}: cannot read {place}: {error}") from error
