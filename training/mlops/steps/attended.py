"""``python -m mlops.steps.attended INPUT.json``: run one step in a terminal, and open the debugger where it fails."""

from __future__ import annotations

import bdb
import pdb
import sys
import traceback

from mlops.contract.refs import Ref
from mlops.contract.step import Failure, StepError, StepInput
from mlops.process import ProcessSettings, die_with_parent
from mlops.steps.execution import execute, report


class DebuggedError(StepError):
    """Somebody has seen enough in the debugger."""


def main() -> int:
    die_with_parent()
    return 1 if isinstance(report(_debugged), Failure) else 0


def _debugged(document: StepInput, deployment: ProcessSettings) -> Ref | None:
    try:
        return execute(document, deployment)
    except bdb.BdbQuit as end:
        raise DebuggedError("the debugger was left by q: the step ended there") from end
    except (Exception, KeyboardInterrupt) as error:
        traceback.print_exc()
        pdb.post_mortem(error.__traceback__)
        if isinstance(error, Exception):
            raise
        raise DebuggedError("stopped by Ctrl-C") from error


if __name__ == "__main__":
    sys.exit(main())
