"""
Work on requests, one after the other, in a process that has the library and the packages which a model was registered
with.

This file goes along in each model's package, as do the programs that use it, :mod:`mlops.serving.answering` and
:mod:`mlops.serving.scoring`, and is run years later by another release: what they are given and what they leave are a
format. Change it in none of the three without a new :data:`FORMAT`.

``python -m PROGRAM DATA REPLIES``: ``DATA`` is the folder of the model, ``REPLIES`` the number of a pipe. Each line of
its input is a request, ``{"rows": FILE, "result": FOLDER}``: raw rows in Arrow's IPC format, and a folder for what the
program makes of them. Each is replied to by a line in the pipe, JSON: the ``format``, and what the program says or,
under ``error``, why it has nothing to say. The process ends where its input does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import polars as pl

from mlops.contract.step import StepError
from mlops.predictor.predictor import Predictor, open_predictor
from mlops.process import die_with_parent

FORMAT: Final = 2


def reply_to_requests(work: Callable[[Predictor, pl.DataFrame, Path], dict[str, Any]]) -> None:
    """
    Reply to all requests of this process.

    :param work: takes the model, the rows of a request and the folder for its result; returns what the program says
    """
    die_with_parent()
    model = cache(lambda: open_predictor(Path(sys.argv[1])))
    with os.fdopen(os.dup(sys.stdin.fileno())) as requests, os.fdopen(int(sys.argv[2]), "w") as replies:
        # A recipe may start what reads its input.
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), sys.stdin.fileno())
        for line in requests:
            request = json.loads(line)
            try:
                said = work(model(), pl.read_ipc(request["rows"]), Path(request["result"]))
            except StepError as error:
                said = {"error": str(error)}
            print(json.dumps({"format": FORMAT, **said}), file=replies, flush=True)
