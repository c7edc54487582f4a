"""
``python -m mlops.container COMMAND...``: the first process of a step's container, see :mod:`mlops.steps.pod`.

The first process of a PID namespace gets only signals that it has a handler for, and SIGTERM is sent once: a pod that
is removed while this process imports what it needs would work on until its grace period is over. So the handlers come
first, and nothing else is imported before them.
"""

import signal
import sys
from types import FrameType

_told: list[int] = []


def _note(number: int, frame: FrameType | None) -> None:
    _told.append(number)


if __name__ == "__main__":
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _note)

    from mlops.steps.pod import main

    sys.exit(main(sys.argv[1:], lambda: bool(_told)))
