"""
What the first process of a step's container does (:mod:`mlops.container`).

It runs the command, forwards signals to it, and writes the failure to where the launcher finds it after the pod is
gone: to the store, and to the container's termination message. A ref is in the store already: that is the commit.

A node that lost the rendezvous joins again: the pod that held it is replaced. Where nodes of a fixed number stay apart
for twice as long as pods may take to run, their pods do run, and cannot reach each other.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from mlops.contract.step import (
    ATTEMPT_VARIABLE,
    FAILED,
    INTERRUPTED,
    LOST,
    RESULT_PATH_VARIABLE,
    STORE_VARIABLE,
    Failure,
    StepInput,
    failure_key,
    read_result,
)
from mlops.store import Store
from mlops.store_errors import StoreError

logger = logging.getLogger("mlops")

LOST_RENDEZVOUS = "NodesLostError"
APART = "NodesApartError"
_MOST_WAITS = 2
"""Times that a node waits for as long as pods may take to run. Where they do not run, the launcher gives up earlier."""
_TERMINATION_MESSAGE = Path("/dev/termination-log")
_MOST_BYTES = 4096
"""What Kubernetes keeps of a container's last words."""
_REJOIN_SECONDS = 1.0


class Container:
    """The command of a container, and the signals that this process gets while it runs."""

    def __init__(self, command: Sequence[str], result: Path) -> None:
        self._command = command
        self._environment = os.environ | {RESULT_PATH_VARIABLE: str(result)}
        self._child: subprocess.Popen[bytes] | None = None
        self.told_to_end = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hand_on)

    def run(self) -> int:
        """Run the command, unless it is to end by now, and return its exit code, as a shell gives it."""
        if self.told_to_end:
            return INTERRUPTED
        self._child = child = subprocess.Popen(self._command, env=self._environment)
        if self.told_to_end:  # since then
            os.kill(child.pid, signal.SIGTERM)
        # What the command leaves behind when it ends becomes this process's child: a zombie unless it is waited for.
        while (ended := os.wait())[0] != child.pid:
            pass
        code = os.waitstatus_to_exitcode(ended[1])
        child.returncode = code
        return code if code >= 0 else 128 - code

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self.told_to_end = True
        if self._child is not None and self._child.returncode is None:
            # Popen's own would look first whether the child has ended, and so take its status from run.
            os.kill(self._child.pid, number)


def main(command: Sequence[str], told_to_end: Callable[[], bool]) -> int:
    """
    :param told_to_end: says whether this process was, before it handed signals on
    """
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    result = Path(tempfile.mkdtemp(prefix="step-"), "result.json")
    container = Container(command, result)
    container.told_to_end |= told_to_end()
    apart_since: float | None = None
    while True:
        begun = time.monotonic()
        code = container.run()
        outcome = read_result(result)
        if isinstance(outcome, Failure) and outcome.type not in (LOST_RENDEZVOUS, APART):
            _leave(outcome, Path(command[-1]))
            return FAILED
        if container.told_to_end:
            return INTERRUPTED if code else 0
        if not isinstance(outcome, Failure):
            # A step's process has nothing to say beyond its code where it was killed, or where it is not the rank 0.
            # Killed by SIGTERM without anybody's asking this pod to end: to the Job's policy 143 would say that
            # somebody did, and it would replace such pods for ever.
            return LOST if 0 < code < 128 or code == INTERRUPTED else code
        if outcome.type == LOST_RENDEZVOUS:
            apart_since = None
        elif outcome.details["is_fixed"]:  # else the others may work without it
            apart_since = apart_since or begun
            if time.monotonic() - apart_since > _MOST_WAITS * outcome.details["join_seconds"]:
                _TERMINATION_MESSAGE.write_bytes(_shortened(_without_network(outcome)))
                return LOST
        logger.warning("%s; joining again", outcome.message)
        result.unlink()
        time.sleep(_REJOIN_SECONDS)


def _leave(failure: Failure, document: Path) -> None:
    _TERMINATION_MESSAGE.write_bytes(_shortened(failure))
    key = failure_key(StepInput.load(document.read_text()).place, os.environ[ATTEMPT_VARIABLE])
    try:
        # The first node to fail has the word.
        Store(os.environ[STORE_VARIABLE]).put_new(key, json.dumps(asdict(failure), default=str).encode())
    except StoreError as error:  # the message is left all the same
        logger.warning("what failed could not be stored: %s", error)


def _without_network(apart: Failure) -> Failure:
    message = (
        f"{apart.message}. Its pods run and do not reach each other: does a NetworkPolicy let them, as "
        "between-steps in include/kubernetes/20-network.yaml does, and does the name of the first one resolve?"
    )
    logger.error("%s", message)
    return dataclasses.replace(apart, message=message)


def _shortened(failure: Failure) -> bytes:
    """Return a document without details, whose message fits into what Kubernetes keeps: 4,096 bytes."""
    fields = asdict(failure) | {"details": {}}
    message = failure.message
    while len(document := json.dumps(fields | {"message": message}).encode()) > _MOST_BYTES:
        message = message[: len(message) * 9 // 10]
    return document
