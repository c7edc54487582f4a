"""Answer rows by the package of a model, as its server would, a batch after the other."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

from mlops.serving import answering
from mlops.serving.registered_package import Program, RegisteredPackage

Answer = Callable[[pl.DataFrame], pl.DataFrame]
"""Raw rows, whole groups, to the columns of the answer, row for row; null for a row that the feature set leaves out."""


@contextmanager
def answers_of(package: RegisteredPackage, scratch: Path) -> Iterator[Answer]:
    """
    Open a model to be asked.

    :param scratch: folder for files
    :raises BadDataError: when it is asked about rows that it cannot answer
    :raises BadConfigError: where what it was registered with cannot be had here
    """
    if (model := package.opened()) is not None:
        yield partial(answering.answer, model)
        return
    with package.running(answering) as program:
        yield partial(_apart, program, scratch)


def _apart(program: Program, scratch: Path, rows: pl.DataFrame) -> pl.DataFrame:
    with TemporaryDirectory(dir=scratch) as folder:
        program.ask(rows, Path(folder))
        return pl.read_ipc(io.BytesIO(Path(folder, answering.ANSWERS).read_bytes()))
