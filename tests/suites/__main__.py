"""
Run every test: the suites side by side, failed tests once more alone, then a table. ``make test`` and ``make check``.

It exits with 1 where a test failed twice, and where more than two were unsteady or one that this change brings.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from suites.runner import Run
from suites.suite import suites


def main() -> int:
    parser = argparse.ArgumentParser(prog="suites", description=__doc__)
    parser.add_argument("--light", action="store_true", help="only tests that start neither server nor gang")
    parser.add_argument("--order", type=int, metavar="SEED", help="random order of files, and of tests in each")
    parser.add_argument("--only", action="append", metavar="SUITE", help="suites to run")
    parser.add_argument("--write-durations", action="store_true", help="keep the files' durations, for their order")
    options = parser.parse_args()
    every = {suite.name: suite for suite in suites(os.cpu_count() or 2)}
    if unknown := set(options.only or ()) - set(every):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}: there are {', '.join(every)}")
    chosen = [suite for name, suite in every.items() if options.only is None or name in options.only]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run = Run(suites=chosen, light=options.light, order=options.order, write_durations=options.write_durations)
    return run.run()


if __name__ == "__main__":
    sys.exit(main())
