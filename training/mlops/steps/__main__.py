"""``python -m mlops.steps INPUT.json``: run one step and write its result document."""

from __future__ import annotations

import sys

from mlops.contract.step import Failure
from mlops.process import die_with_parent
from mlops.steps.execution import execute, report


def main() -> int:
    die_with_parent()
    return 1 if isinstance(report(execute), Failure) else 0


if __name__ == "__main__":
    sys.exit(main())
