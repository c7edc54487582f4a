"""A Parquet file for each period, with where it is from in its metadata."""

from __future__ import annotations

import io
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Final

import polars as pl
from polars.exceptions import PolarsError

from mlops.contract.sections.predict import FilesOutput
from mlops.contract.step import BadConfigError
from mlops.data.sinks.sink import INTERVAL_END, PIPELINE, Origin
from mlops.store import Store

_MARK_BYTES: Final = 8
"""At the end of a Parquet file: how long its metadata are, and a mark."""


class Files:
    tabular: ClassVar[bool] = False

    def __init__(self, settings: FilesOutput, home: Path) -> None:
        self._folder = Store(settings.path if "://" in settings.path else f"file://{home / settings.path}")

    @property
    def place(self) -> str:
        return self._folder.uri

    def put(self, period: str, data: bytes, origin: Origin) -> bool:
        name = f"{period}.parquet"
        if (there := self._metadata(name)) is not None:
            if there.get(PIPELINE) != origin.pipeline:
                raise BadConfigError(
                    f"{self.place}/{name} was written by {there.get(PIPELINE, 'something else')}, not by "
                    f"{origin.pipeline}: give each pipeline a folder of its own in predict.output, or move that file "
                    "away"
                )
            if datetime.fromisoformat(there[INTERVAL_END]) > origin.interval_end:
                return False
        self._folder.put(name, data)
        return True

    def _metadata(self, name: str) -> dict[str, str] | None:
        """Return the metadata of a file, empty where it is no Parquet; None where there is none."""
        if (size := self._folder.size(name)) is None:
            return None
        mark = bytes(self._folder.get_range(name, max(0, size - _MARK_BYTES), _MARK_BYTES))
        length = int.from_bytes(mark[:4], "little") + _MARK_BYTES
        try:
            return pl.read_parquet_metadata(io.BytesIO(self._folder.get_range(name, max(0, size - length), length)))
        except PolarsError:
            return {}
