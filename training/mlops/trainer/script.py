"""A torchrun script of the recipe's own in the place of our loop, and what it must leave."""

from __future__ import annotations

import json
import math
import os
import runpy
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final, Self

import torch
from torch import nn

from mlops.contract.step import BadConfigError, BadDataError
from mlops.tracking.connection import allowed
from mlops.tracking.journal import Point
from mlops.trainer.checkpoint.weights import deserialise

CHECKPOINTS_VARIABLE: Final = "MLOPS_CHECKPOINTS"
"""URI of the place for its checkpoints, the same for each try."""
OUTPUT_VARIABLE: Final = "MLOPS_OUTPUT"
"""Local folder for what it leaves."""
WEIGHTS, METRICS = "weights.pt", "metrics.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramOutput:
    """What rank 0 of a script left in :data:`OUTPUT_VARIABLE`."""

    weights: dict[str, Any]
    """State dict of the model that ``train.model`` builds."""
    epoch: int
    metrics: Mapping[str, float]

    @classmethod
    def read(cls, folder: Path, *, program: str, metric: str, model: nn.Module) -> Self:
        """
        :param metric: which the pipeline judges models by
        :param model: as evaluation will build it
        :raises BadDataError: naming the file that is missing or damaged
        :raises BadConfigError: where what is in it does not fit the pipeline
        """
        for name in (WEIGHTS, METRICS):
            if not (folder / name).is_file():
                raise BadDataError(
                    f"{program} left no {name} in {OUTPUT_VARIABLE}: its rank 0 must write it, for instance by "
                    "mlops.Program.finish"
                )
        epoch, metrics = _metrics(folder / METRICS, program)
        if metric not in metrics:
            raise BadConfigError(f"{program}: {METRICS} has {sorted(metrics)} and not train.metric, {metric}")
        return cls(weights=_weights(folder / WEIGHTS, program, model), epoch=epoch, metrics=metrics)

    def point(self) -> Point:
        """The metrics by epoch, as MLflow takes them."""
        metrics = {allowed(f"validation_{name}"): value for name, value in self.metrics.items()}
        return Point(step=self.epoch, unix_time=time.time(), metrics=metrics)


def run_script(home: Path, program: str, document: str, *, checkpoints: str, scratch: Path) -> Path:
    """
    Run it in this process as ``python -m`` would, its one argument the step's input document. Called by all ranks.

    :param program: ``include/<pipeline>/<name>.py`` in ``home``; its imports of the recipe are relative
    :param checkpoints: see :data:`CHECKPOINTS_VARIABLE`
    :return: the folder of its output
    :raises BadConfigError: where there is no such file
    """
    if not (home / program).is_file():
        raise BadConfigError(f"train.program: there is no file {home / program}")
    path, output = scratch / "input.json", scratch / "output"
    path.write_text(document)
    output.mkdir()
    os.environ[CHECKPOINTS_VARIABLE], os.environ[OUTPUT_VARIABLE] = checkpoints, str(output)
    module = ".".join(Path(program).with_suffix("").parts)
    with _arguments([program, str(path)]):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
    return output


@contextmanager
def _arguments(arguments: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, arguments
    try:
        yield
    finally:
        sys.argv = before


def _metrics(path: Path, program: str) -> tuple[int, Mapping[str, float]]:
    try:
        found = json.loads(path.read_text())
        epoch, metrics = found["epoch"], dict(found["metrics"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadDataError(
            f'{program}: {METRICS} must be {{"epoch": 3, "metrics": {{"ndcg@10": 0.8}}}} ({error})'
        ) from error
    for name, value in {"epoch": epoch, **metrics}.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadDataError(f"{program}: {METRICS} has {name} = {value!r}; a finite number is needed")
    return int(epoch), metrics


def _weights(path: Path, program: str, model: nn.Module) -> dict[str, Any]:
    try:
        weights = deserialise(path.read_bytes(), torch.device("cpu"))
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError, ValueError, EOFError, UnpicklingError) as error:
        raise BadDataError(
            f"{program}: {WEIGHTS} is not the state dict of the model that train.model builds; save "
            f"model.state_dict(), unwrapped from DDP or FSDP: {str(error).splitlines()[0]}"
        ) from error
    return weights
