"""Write the data that a server sends to a local file, a batch at a time, so that no table has to fit into memory."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Write a file that gets its name only when it is whole: other threads and processes may fetch the same piece."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        yield partial
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def write_batches(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Store batches as Parquet."""
    with new_file(path) as partial, pq.ParquetWriter(partial, schema, compression="lz4") as writer:
        for batch in batches:
            writer.write_batch(batch)
