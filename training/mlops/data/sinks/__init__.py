"""Sinks: where predictions go beside the store, period by period, so that others read them there."""

from __future__ import annotations

from pathlib import Path

from mlops.contract.sections.predict import DeltaOutput, FilesOutput, SqlOutput
from mlops.data.sinks.sink import COLUMNS, Origin, Sink, SinkError

__all__ = ["COLUMNS", "Origin", "Sink", "SinkError", "open_sink"]


def open_sink(settings: FilesOutput | DeltaOutput | SqlOutput, home: Path) -> Sink:
    """
    Make what writes to a sink. Nothing is written yet.

    Each is imported only now: a step waits for the libraries of its own sink.

    :param home: folder where relative paths start
    :raises BadConfigError: where there can be no such sink
    """
    match settings:
        case FilesOutput():
            from mlops.data.sinks.files import Files

            return Files(settings, home)
        case DeltaOutput():
            from mlops.data.sinks.delta import Delta

            return Delta(settings, home)
        case SqlOutput():
            from mlops.data.sinks.sql import sql_table

            return sql_table(settings)
