"""
``python -m training.steps.torchrun OPTIONS -m training.steps INPUT.json``: torchrun that ends with its launcher, and so
takes its workers with it. It is not started for work that is committed already: torch alone takes seconds to import.
"""

from __future__ import annotations

import sys

from mlops_provider.step import Failure
from training.process import die_with_parent
from training.steps.execution import find_committed, report


def main() -> int:
    die_with_parent()
    outcome = report(find_committed)
    if outcome is not None:
        return 1 if isinstance(outcome, Failure) else 0
    from torch.distributed.run import main as torchrun

    torchrun()
    return 0


if __name__ == "__main__":
    sys.exit(main())
