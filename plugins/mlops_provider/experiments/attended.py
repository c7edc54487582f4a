"""A step as the foreground process of this terminal, with the debugger where it fails."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from mlops.contract.step import read_result
from mlops_provider.launchers.base import Outcome
from mlops_provider.launchers.child import Order, describe, process_variables
from mlops_provider.launchers.scratch import scratch_folder


def attended(order: Order) -> Outcome:
    """
    Run a step that has the keyboard: one process, whatever the number of its workers would be.

    Ctrl-C is the step's, as every key: it opens the debugger where the step is.
    """
    with scratch_folder(order.step) as folder, _keyboard_elsewhere():
        document, result = folder / "input.json", folder / "result.json"
        document.write_text(order.document)
        done = subprocess.run(
            [order.python, "-m", "mlops.steps.attended", str(document)],
            cwd=order.home,
            env={**order.environment, **process_variables(result)},
            check=False,
        )
        return Outcome(result=read_result(result), status=describe(done.returncode))


@contextmanager
def _keyboard_elsewhere() -> Iterator[None]:
    # By a function, and not SIG_IGN: that would be inherited.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
