"""The protocol of a source: it says exactly what it reads, and reads it in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar
from zipfile import BadZipFile

import polars as pl
from polars.exceptions import PolarsError

from mlops.contract import sources as sections
from mlops.contract.step import BadDataError, StepError
from mlops.data.sources.records import Records

Position = Mapping[str, Any]
"""
Exact description of what is read, as JSON: digests of files, a table's version, ids, offsets, a transaction's snapshot.
"""
DOCUMENT = "document"
"""Column with one JSON object a row, where a source has :attr:`Source.documents`."""


class SourceError(StepError):
    """A source cannot be read just now. The error is retried, because servers recover."""


class Piece(Protocol):
    """A part of a source, to be read in any process: picklable, with all it needs in itself."""

    @property
    def place(self) -> str:
        """Name of the piece in messages, e.g. the file's name."""

    def __call__(self) -> pl.LazyFrame: ...


class Source(Protocol):
    """
    One table somewhere. The step's process calls ``position``, then ``pieces`` with it, and ``finish`` when all pieces
    have been read, or their data turn out to be bad; a piece is called by whoever reads it, maybe more than once.
    """

    @property
    def documents(self) -> bool:
        """True if a piece has its rows as JSON, in the column :data:`DOCUMENT`."""

    @property
    def text(self) -> bool:
        """True if columns of text get the types that their values show."""

    @property
    def local(self) -> bool:
        """True if a piece, once read, is a file on this machine that can be scanned as it stands."""

    def position(self) -> Position:
        """Settle exactly what is read."""

    def pieces(self, position: Position, scratch: Path) -> Sequence[Piece]:
        """
        Divide the source into pieces.

        :param scratch: folder for fetched files; made by the code that needs it
        """

    def finish(self, position: Position) -> None:
        """
        Release the source after all pieces have been read, or where their data are bad; maybe more than once.

        :raises SourceError: if the source stopped matching the position while it was read
        """


_PLAINLY: Final[Mapping[str, str]] = {
    "empty CSV": "it is empty; was it written to the end?",
    "invalid utf-8": "it is not UTF-8; convert it, e.g. by iconv -f LATIN1 -t UTF-8",
    "found more fields than defined": "a row has more fields than the header; a text with a separator in it belongs in "
    "quotes",
    "CSV malformed": "its rows cannot be told apart; is there a quote that is not closed?",
    "must end with PAR1": "it is no whole Parquet file; was it written to the end?",
}
"""What Polars says of a file, and what that means for whoever wrote it."""

SettingsT = TypeVar("SettingsT", bound=sections.SourceSection)


@dataclass(frozen=True, kw_only=True)
class SourceReader(Generic[SettingsT]):
    """The settings that all kinds of sources are given."""

    name: str
    """Name of the source, its key in ``ingest.sources``."""
    home: Path
    """Folder where relative paths start."""
    records: Records
    """Rule for which rows count; a source may leave the others out if that saves work."""
    settings: SettingsT
    """Settings of this kind of source, from ``ingest.sources``."""

    def finish(self, position: Position) -> None:
        """Do nothing: the source holds nothing."""


@contextmanager
def reading(name: str, place: str) -> Iterator[None]:
    """
    Name the source and the place in the error if its data cannot be read.

    :raises BadDataError: naming both
    """
    try:
        yield
    except (PolarsError, BadZipFile, EOFError, UnicodeDecodeError) as error:
        cause = str(error).strip().split("\n", 1)[0]
        plain = next((said for begin, said in _PLAINLY.items() if begin in cause), cause)
        raise BadDataError(f"source {name!r}: cannot read {place}: {plain}") from error


@contextmanager
def unchanged(*finish: Callable[[], None]) -> Iterator[None]:
    """
    Report that a source was replaced while it was read, rather than bad data: their error would name a wrong cause, and
    another try can help.

    :param finish: :meth:`Source.finish` of each source that is read within
    :raises SourceError: where a source changed, instead of the error of the data
    """
    try:
        yield
    except BadDataError:
        for each in finish:
            each()
        raise
