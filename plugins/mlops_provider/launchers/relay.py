"""
Runs one step as the user of this process, for :class:`mlops_provider.launchers.other_user.UserRun`.

In, on its standard input: one line, the order. Its end is the order to cancel. Out: one JSON object a line: ``begun``,
then each ``line`` of the step, then ``status`` with the result.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict
from typing import Any

from mlops.contract.step import Failure
from mlops_provider.launchers.child import GRACE_SECONDS, ChildRun, Order


def main() -> None:
    text = sys.stdin.readline()
    if not text.endswith("\n"):  # who ordered it has ended
        return
    order, run = Order.from_json(text), ChildRun()
    _say({"begun": True})
    done = threading.Event()
    threading.Thread(target=_watch, args=(run, done), daemon=True).start()
    outcome = run.run(order, lambda line: _say({"line": line}))
    result = outcome.result
    error, ref = (asdict(result), None) if isinstance(result, Failure) else (None, result and result.to_wire())
    _say({"status": outcome.status, "error": error, "ref": ref})
    done.set()


def _watch(run: ChildRun, done: threading.Event) -> None:
    sys.stdin.read()
    run.cancel()
    # The step's files are removed meanwhile. It may not have begun, too: then nothing may begin.
    done.wait(GRACE_SECONDS)
    os._exit(1)


def _say(message: dict[str, Any]) -> None:
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:  # it is cancelled, which the other thread sees to
        return
