"""``mlops lint --with-data``: a pipeline tried out on a sample of its data; all its mistakes at once."""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from mlops.commands import Places, Subparsers
from mlops.contract.step import scratch_parent
from mlops.rehearsal.rehearse import rehearse


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("lint", help=__doc__, description=__doc__)
    parser.set_defaults(run=_run)
    parser.add_argument("document", metavar="FILE", type=Path, help="the pipeline's settings, as JSON")
    parser.add_argument("findings", metavar="FILE", type=Path, help="written: what was found, as JSON")


def _run(options: argparse.Namespace, places: Places, console: Console) -> int:
    """Write the findings; who asked knows in which lines of the pipeline's file they are."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    document = json.loads(options.document.read_text())
    with tempfile.TemporaryDirectory(prefix="rehearsal-", dir=scratch_parent()) as scratch:
        found = rehearse(document, home=places.home, store=places.store, scratch=Path(scratch), now=datetime.now(UTC))
    problems = [[list(problem.keys), problem.message] for problem in found.problems]
    options.findings.write_text(json.dumps({"problems": problems, "done": list(found.done)}))
    return 1 if problems else 0
