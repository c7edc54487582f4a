"""Files, on a disk or in an object store, one row for each: of text, or of any bytes."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, groupby
from pathlib import Path, PurePosixPath
from typing import Final

import polars as pl

from mlops.contract.refs import digest_of
from mlops.contract.sources import BytesSource, TextSource
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.sources.files import FilePiece, Files
from mlops.data.sources.source import Piece, Position

PIECE_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the files that are read as one piece."""


@dataclass(frozen=True, kw_only=True)
class WholeFiles(Files[TextSource | BytesSource]):
    """
    Files as rows of ``path``, below the folder that the pattern begins with, ``text`` or ``bytes``, and ``as_of``; see
    :class:`mlops.contract.sources.WholeFilesSource`.
    """

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.path).suffix

    @property
    def documents(self) -> bool:
        return False

    @property
    def text(self) -> bool:
        return False

    @property
    def local(self) -> bool:
        return False

    def position(self) -> Position:
        position = super().position()
        if self.settings.sha256 is not None:
            self._check(position)
        return position

    def pieces(self, position: Position, scratch: Path) -> Sequence[Piece]:
        files = [piece for piece in super().pieces(position, scratch) if isinstance(piece, FilePiece)]
        ends = accumulate(piece.entry["num_bytes"] for piece in files)
        parts = groupby(zip(ends, files, strict=True), key=lambda part: part[0] // PIECE_BYTES)
        folder, as_of = _folder(self.path), self.records.as_of - timedelta(microseconds=1)
        decoded = isinstance(self.settings, TextSource)
        return [WholeFilesPiece(tuple(file for _, file in part), folder, as_of, decoded) for _, part in parts]

    def _check(self, position: Position) -> None:
        if "files" not in position:
            raise BadConfigError(
                f"source {self.name!r}: ingest.sources.{self.name}.sha256 is of files on a disk, and {self.path} are "
                "objects; remove it"
            )
        folder = _folder(self.path)
        found = digest_of({_below(folder, entry["path"]): entry["sha256"] for entry in position["files"]})
        if found != self.settings.sha256:
            raise BadDataError(
                f"source {self.name!r}: the {len(position['files'])} files of {self.path} are not those that the "
                f"pipeline is made for: ingest.sources.{self.name}.sha256 is {self.settings.sha256}, and theirs is "
                f"{found}; if they are meant, write that"
            )


@dataclass(frozen=True, slots=True)
class WholeFilesPiece:
    """Some files that are read as one piece."""

    files: tuple[FilePiece, ...]
    folder: str
    as_of: datetime
    decoded: bool
    """True: their content is text."""

    @property
    def place(self) -> str:
        return self.files[0].place if len(self.files) == 1 else f"{len(self.files)} files from {self.files[0].place} on"

    def __call__(self) -> pl.LazyFrame:
        paths = pl.Series("path", [_below(self.folder, file.entry["path"]) for file in self.files], pl.String)
        if self.decoded:
            content = pl.Series("text", [_text(file) for file in self.files], pl.String)
        else:
            content = pl.Series("bytes", [file.on_disk().read_bytes() for file in self.files], pl.Binary)
        as_of = pl.lit(self.as_of, pl.Datetime("us", "UTC"))
        return pl.LazyFrame([paths, content]).with_columns(as_of=as_of)


def _text(file: FilePiece) -> str:
    try:
        return file.on_disk().read_bytes().decode()
    except UnicodeDecodeError as error:
        raise BadDataError(
            f"source {file.source!r}: {file.place} is not text in UTF-8: {error}; leave it out of the pattern"
        ) from error


def _folder(path: str) -> str:
    """
    Return the folder of a name, or the one that a pattern begins with; for an object, the folder within its store.
    """
    scheme, separator, rest = path.partition("://")
    parts = PurePosixPath(rest if separator else path).parts
    fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    # The store of objects is the fixed part itself; see Files.
    return "" if separator and scheme != "file" else str(PurePosixPath(*parts[:fixed]))


def _below(folder: str, path: str) -> str:
    return str(PurePosixPath(path).relative_to(folder))
