"""
Files on a disk or in an object store: Parquet, CSV and JSON lines, the latter two also compressed.

The position says exactly what is read: files are identified by their digest, objects by the entity tag (and version)
that the store gave them, with which alone they are fetched.
"""

from __future__ import annotations

import codecs
import glob
import hashlib
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Generic, TypeVar, cast

import obstore
import polars as pl
import pyarrow as pa
from obstore.exceptions import PreconditionError
from obstore.store import from_url

from mlops.contract.outages import store_cause
from mlops.contract.sources import FileSource, WholeFilesSource
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.sources.csv_lines import short_row
from mlops.data.sources.fetch import new_file
from mlops.data.sources.source import DOCUMENT, Piece, Position, SourceError, SourceReader

_LAST_BYTES = 1 << 20
"""Most bytes of a file's last line that are looked at."""
_PART_BYTES = 32 << 20
"""Bytes of an object that are fetched by one request."""
COMPRESSIONS = ("", ".gz", ".zip", ".zst")
FORMATS = (".parquet", *(f"{kind}{compression}" for kind in (".csv", ".jsonl") for compression in COMPRESSIONS))


FilesT = TypeVar("FilesT", bound=FileSource | WholeFilesSource)


@dataclass(frozen=True, kw_only=True)
class Files(SourceReader[FilesT], Generic[FilesT]):
    """Files of one format, by name or pattern."""

    @property
    def path(self) -> str:
        return self.settings.path

    @property
    def null_values(self) -> Sequence[str]:
        return self.settings.null_values if isinstance(self.settings, FileSource) else ()

    @property
    def separator(self) -> str:
        return self.settings.separator if isinstance(self.settings, FileSource) else ","

    @property
    def suffix(self) -> str:
        found = next((known for known in reversed(FORMATS) if self.path.endswith(known)), None)
        if found is None:
            raise BadConfigError(
                f"source {self.name!r}: {self.path!r} is of no known format; known are {', '.join(FORMATS)}; "
                "have the program that wrote it save it as one of these"
            )
        return found

    @property
    def documents(self) -> bool:
        return self.suffix.startswith(".jsonl")

    @property
    def text(self) -> bool:
        return self.suffix.startswith(".csv")

    @property
    def local(self) -> bool:
        return self.suffix == ".parquet"

    @property
    def _store(self) -> str | None:
        """The folder of a store that holds the objects; None for local files."""
        if "://" not in self.path or self.path.startswith("file://"):
            return None
        return _fixed_part(self.path)[0]

    def position(self) -> Position:
        _ = self.suffix  # an unknown format is an error before anything is read
        if self._store is not None:
            return {"path": self.path, "objects": self._objects()}
        return {"path": self.path, "files": [_identity(self.home, name) for name in self._names()]}

    def pieces(self, position: Position, scratch: Path) -> Sequence[Piece]:
        nulls = tuple(self.null_values)
        if self._store is None:
            found = [(str(self.home / entry["path"]), entry) for entry in position["files"]]
        else:
            found = [(entry["path"], entry) for entry in position["objects"]]
        return [
            FilePiece(
                source=self.name,
                path=path,
                store=self._store,
                entry=entry,
                suffix=self.suffix,
                null_values=nulls,
                scratch=scratch / f"{number:05d}",
                separator=self.separator,
            )
            for number, (path, entry) in enumerate(found)
        ]

    def finish(self, position: Position) -> None:
        for entry in position.get("files", ()):
            path = self.home / entry["path"]
            if not path.exists() or (_stamp(path), path.stat().st_size) != (entry["modified_ns"], entry["num_bytes"]):
                raise SourceError(
                    f"source {self.name!r}: {path} was replaced while it was read; deliver files under a new name, or "
                    "rename them into place before the run; it will be retried"
                )

    def _names(self) -> list[str]:
        path = self.path.removeprefix("file://")
        # A name with brackets is a name, where there is such a file; so is the project's folder.
        names = [path] if (self.home / path).exists() else sorted(glob.glob(path, root_dir=self.home, recursive=True))
        if folder := next((name for name in names if (self.home / name).is_dir()), None):
            raise BadConfigError(
                f"source {self.name!r}: {self.home / folder} is a folder; name the files in it, e.g. "
                f"{path.rstrip('/')}/*, or say kind: delta if it is a Delta table"
            )
        if not names:
            raise BadDataError(
                f"source {self.name!r}: there is no file {self.home / path}; put it there (for the example pipelines: "
                f"make data), or change ingest.sources.{self.name}.path"
            )
        return names

    def _objects(self) -> list[dict[str, Any]]:
        """List the objects that match, sorted by key; like a file glob, ``*`` stays within a folder."""
        folder, pattern = _fixed_part(self.path)
        if "**" in PurePosixPath(pattern).parts:
            raise BadConfigError(
                f"source {self.name!r}: {self.path}: ** is not read in an object store; name each depth, as in */*.py"
            )
        depth = len(PurePosixPath(pattern).parts)
        try:
            listed = [entry for page in obstore.list(from_url(folder)) for entry in page]
        except Exception as error:
            raise SourceError(f"source {self.name!r}: cannot list {folder}: {store_cause(error)}") from error
        matching = (
            entry
            for entry in sorted(listed, key=lambda entry: str(entry["path"]))
            if len(PurePosixPath(entry["path"]).parts) == depth and PurePosixPath(entry["path"]).match(pattern)
        )
        found = [
            {"path": e["path"], "num_bytes": e["size"], "e_tag": e["e_tag"], "version": e["version"]} for e in matching
        ]
        if not found:
            raise BadDataError(f"source {self.name!r}: nothing at {self.path}; check ingest.sources.{self.name}.path")
        return found


@dataclass(frozen=True, slots=True)
class FilePiece:
    """One file."""

    source: str
    path: str
    """Path of the file, or of the object in its store."""
    store: str | None
    entry: dict[str, Any]
    suffix: str
    null_values: tuple[str, ...]
    scratch: Path
    """Path whose name begins those of the fetched and the unpacked file."""
    separator: str = ","
    """Between the fields of CSV."""

    @property
    def place(self) -> str:
        return self.path if self.store is None else f"{self.store}/{self.path}"

    def __call__(self) -> pl.LazyFrame:
        file = self.on_disk()
        kind = f".{self.suffix.split('.')[1]}"
        if compression := self.suffix.removeprefix(kind):
            file = self._unpacked(file, compression, kind)
        if kind == ".parquet":
            return pl.scan_parquet(file, glob=False)
        if kind == ".jsonl":
            line = pl.col(DOCUMENT).str.strip_prefix("\ufeff")  # some programs begin a file with a byte order mark
            return pl.scan_lines(file, name=DOCUMENT, glob=False).select(line).filter(line.str.strip_chars() != "")
        # As text: the types follow from the known rows alone.
        self._refuse_utf16(file)
        rows = pl.scan_csv(
            file, infer_schema=False, null_values=list(self.null_values), separator=self.separator, glob=False
        )
        columns = rows.collect_schema().names()
        self._refuse_other_separator(columns)
        self._refuse_cut(file, len(columns))
        self._refuse_short(file, len(columns))
        # Polars renames the second of two columns of one name.
        for name in columns:
            original, renamed, _ = name.partition("_duplicated_")
            if renamed and original in columns:
                raise BadDataError(
                    f"source {self.source!r}: {self.place} has two columns {original!r}; rename one of them, if "
                    "the first line is meant to be a header"
                )
        return rows

    def _refuse_utf16(self, file: Path) -> None:
        """:raises BadDataError: where a file begins with the mark of UTF-16"""
        with file.open("rb") as stream:
            begin = stream.read(2)
        if begin in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise BadDataError(
                f"source {self.source!r}: cannot read {self.place}: it is UTF-16; convert it, e.g. by "
                "iconv -f UTF-16 -t UTF-8"
            )

    def _refuse_other_separator(self, columns: Sequence[str]) -> None:
        """:raises BadDataError: where all of the header is one column, of names that something else separates"""
        if len(columns) != 1:
            return
        signs = {";", "\t", *([] if self.separator == "," else [","])} - {self.separator}
        other = next((sign for sign in sorted(signs) if sign in columns[0]), None)
        if other is not None:
            raise BadDataError(
                f"source {self.source!r}: {self.place} has the one column {columns[0]!r}; if {other!r} separates its "
                f"columns, set ingest.sources.{self.source}.separator"
            )

    def _refuse_cut(self, file: Path, num_columns: int) -> None:
        """
        Refuse a file of which the end is missing: its last row would have nulls that were never written.

        :raises BadDataError: where the last line has no end, and too few fields
        """
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _LAST_BYTES))
            last = stream.read().rpartition(b"\n")[2]
        # Of a line in quotes nobody knows where it began.
        if last.strip() and b'"' not in last and (fields := last.count(self.separator.encode()) + 1) < num_columns:
            line = last[:80].decode(errors="replace")
            raise BadDataError(
                f"source {self.source!r}: cannot read {self.place}: its last line {line!r} has {fields} of "
                f"{num_columns} fields and no end; was it written to the end?"
            )

    def _refuse_short(self, file: Path, num_columns: int) -> None:
        """:raises BadDataError: where a row has too few fields: it would have nulls that were never written"""
        if (row := short_row(file, self.separator, num_columns)) is not None:
            raise BadDataError(
                f"source {self.source!r}: cannot read {self.place}: the row in line {row.line}, {row.text!r}, has "
                f"{row.num_fields} of {num_columns} fields; have it written with all of them, also with those that "
                "are empty"
            )

    def on_disk(self) -> Path:
        """Return the path of the file, fetched if it is an object."""
        return Path(self.path) if self.store is None else self._fetched()

    def _fetched(self) -> Path:
        file = self.scratch.with_name(self.scratch.name + self.suffix)
        if file.exists():
            return file
        assert self.store is not None
        version = self.entry["version"]
        recorded = {"version": version} if version else {"if_match": self.entry["e_tag"]}
        num_bytes = self.entry["num_bytes"]
        try:
            with new_file(file) as partial, partial.open("wb") as target:
                store = from_url(self.store)
                # A request for each part: one for all would have to end within the time in which the client tries.
                for start in range(0, max(num_bytes, 1), _PART_BYTES):
                    end = min(start + _PART_BYTES, num_bytes)
                    part: Any = recorded if num_bytes <= _PART_BYTES else {**recorded, "range": (start, end)}
                    for chunk in obstore.get(store, self.path, options=part).stream():
                        target.write(chunk)
        except (PreconditionError, FileNotFoundError) as error:
            raise SourceError(
                f"source {self.source!r}: {self.place} was replaced while it was read; it will be retried"
            ) from error
        except Exception as error:
            raise SourceError(f"source {self.source!r}: cannot read {self.place}: {store_cause(error)}") from error
        return file

    def _unpacked(self, packed: Path, compression: str, kind: str) -> Path:
        file = self.scratch.with_name(f"{self.scratch.name}-unpacked{kind}")
        if file.exists():
            return file
        try:
            with new_file(file) as partial, partial.open("wb") as target:
                if compression == ".zip":
                    with zipfile.ZipFile(packed) as archive, archive.open(self._only_member(archive)) as stream:
                        shutil.copyfileobj(stream, target, 1 << 20)
                else:
                    codec = {".gz": "gzip", ".zst": "zstd"}[compression]
                    with pa.input_stream(str(packed), compression=codec) as unpacking:
                        shutil.copyfileobj(cast(IO[bytes], unpacking), target, 1 << 20)
        # RuntimeError: a zip with a password, or packed in a way that Python does not know.
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
            raise BadDataError(f"source {self.source!r}: cannot read {self.place}: {error}") from error
        return file

    def _only_member(self, archive: zipfile.ZipFile) -> str:
        members = [member for member in archive.namelist() if not member.endswith("/")]
        if len(members) != 1:
            raise BadDataError(
                f"source {self.source!r}: {self.place} holds {len(members)} files; a zip source holds exactly one"
            )
        return members[0]


def _fixed_part(uri: str) -> tuple[str, str]:
    """Return a URI without its pattern, and the pattern: ``s3://b/x/*.csv`` -> ``s3://b/x``, ``*.csv``."""
    scheme, _, path = uri.partition("://")
    parts = PurePosixPath(path).parts
    fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return f"{scheme}://{'/'.join(parts[:fixed])}", "/".join(parts[fixed:])


def _identity(home: Path, name: str) -> dict[str, Any]:
    # The stamp before the digest: a file that is replaced in between is found out at the end.
    path = home / name
    stamp = _stamp(path)
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"path": name, "num_bytes": path.stat().st_size, "sha256": digest, "modified_ns": stamp}


def _stamp(path: Path) -> int:
    return path.stat().st_mtime_ns
