"""Rows set aside on local disk in buckets, to bring together rows from all over a table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa


class Spool:
    """Arrow tables of one schema, appended to buckets in any order, and read back bucket by bucket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)

    def append(self, bucket: int, table: pa.Table) -> None:
        with self._path(bucket).open("ab") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)

    def read(self, bucket: int) -> pa.Table | None:
        """Return the rows that were appended to a bucket, in that order; None if there are none."""
        path = self._path(bucket)
        if not path.exists():
            return None
        parts = []
        with pa.memory_map(str(path)) as file:
            while file.tell() < file.size():
                parts.append(pa.ipc.open_stream(file).read_all())
        return pa.concat_tables(parts)

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{bucket:05d}.arrows"
