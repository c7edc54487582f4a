"""
Run by torchrun as ``gang_program.py FOLDER INPUT.json``: counts steps, one all-reduce each, as a training would.

The step is the checkpoint, kept in FOLDER. Environment: ``STEPS`` to do; ``DO``, a JSON object of what a rank does
before a step, ``{"1:10": "statement"}``, once, or each time where the key ends in ``!``.
"""

from __future__ import annotations

import json
import os
import re  # noqa: F401
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from mlops.contract.refs import DatasetRef
from mlops.contract.step import INTERRUPTED, BadDataError, Failure, StepError, write_result  # noqa: F401
from mlops.trainer.health import REST, Heartbeat

FOLDER = Path(sys.argv[1])
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
RESULT = Path(os.environ["MLOPS_RESULT_PATH"])
STEPS = int(os.environ.get("STEPS", "20"))
DONE = DatasetRef(
    place="p",
    name="n",
    version="1" * 64,
    schema_hash="2" * 64,
    num_rows=STEPS,
    num_bytes=1,
    interval_start="2024-01-01T00:00:00+00:00",
    interval_end="2024-01-02T00:00:00+00:00",
)


def note(**facts: Any) -> None:
    with (FOLDER / "notes").open("a") as file:
        file.write(json.dumps({"rank": RANK, "world": WORLD_SIZE, "at": time.monotonic(), **facts}) + "\n")


def disturb(heart: Heartbeat, step: int) -> None:
    todo = json.loads(os.environ.get("DO", "{}"))
    for key in (f"{RANK}:{step}", f"{RANK}:{step}!"):
        mark = FOLDER / f"did-{RANK}-{step}"
        if key in todo and (key.endswith("!") or not mark.exists()):
            mark.touch()
            note(does=step)
            exec(todo[key])


def train() -> None:
    heart = Heartbeat.from_environment() if os.environ.get("HEARTBEAT", "1") == "1" else Heartbeat(None, RANK)
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    distributed.init_process_group("gloo")
    saved = FOLDER / "step"
    step = int(saved.read_text()) if saved.exists() else 0
    note(starts=step)
    while step < STEPS:
        heart.beat(step, "forward")
        disturb(heart, step)
        time.sleep(0.02)
        heart.beat(step, "backward")
        flag = torch.tensor(float(bool(asked)))
        distributed.all_reduce(flag)
        step += 1
        if RANK == 0:
            (FOLDER / "new").write_text(str(step))
            (FOLDER / "new").rename(saved)
        if float(flag):
            note(interrupted=step)
            sys.exit(INTERRUPTED)
    heart.beat(step, REST)
    note(ends=step)


try:
    train()
except Exception as error:
    write_result(RESULT, Failure.of(error))
    raise
if RANK == 0:
    write_result(RESULT, DONE)
