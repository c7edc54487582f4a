"""Answer rows by the package of a model, as its server would, a batch after the other."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

from mlops.contract.step import BadConfigError, BadDataError
from mlops.serving import answering
from mlops.serving.registered_package import RegisteredPackage

Answer = Callable[[pl.DataFrame], pl.DataFrame]
"""Raw rows, whole groups, to the columns of the answer, row for row; null for a row that the feature set leaves out."""


def answers_of(package: RegisteredPackage, scratch: Path) -> Answer:
    """
    Open a model to be asked.

    :param scratch: folder for files
    :raises BadDataError: when it is asked about rows that it cannot answer
    :raises BadConfigError: where what it was registered with cannot be had here
    """
    if (model := package.opened()) is not None:
        return partial(answering.answer, model)
    return partial(_apart, package, scratch)


def _apart(package: RegisteredPackage, scratch: Path, rows: pl.DataFrame) -> pl.DataFrame:
    with TemporaryDirectory(dir=scratch) as folder:
        given, result = Path(folder, "rows"), Path(folder, "answers")
        given.mkdir()
        result.mkdir()
        # Any release of Polars reads the oldest layout of strings.
        rows.write_ipc(given / "rows.arrow", compat_level=pl.CompatLevel.oldest())
        package.run(answering.__name__, given, result)
        document = json.loads((result / answering.DOCUMENT).read_text())
        if document["format"] != answering.FORMAT:
            raise BadConfigError(
                f"it was registered with another release, whose answers have format {document['format']}; this one "
                f"reads {answering.FORMAT}"
            )
        if "error" in document:
            raise BadDataError(document["error"])
        return pl.read_ipc(io.BytesIO((result / "rows.arrow").read_bytes()))


def batches(rows: pl.DataFrame, most: int, *, grouped: bool) -> Iterator[pl.DataFrame]:
    """
    Cut rows into batches.

    :param most: rows of a batch; groups, which may be anywhere in the table, are not cut
    """
    if grouped:
        yield rows
    else:
        yield from rows.iter_slices(most)
