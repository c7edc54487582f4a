"""``python -m mlops.commands WORD ...``: started by ``mlops``, in the word's runtime."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Final

from rich.console import Console

from mlops.commands import MISTAKEN, Places
from mlops.contract.printable import printable
from mlops.contract.step import StepError

WORDS: Final = (
    "audit",
    "checkpoints",
    "datasets",
    "diff",
    "features",
    "init",
    "lint",
    "models",
    "reproduce",
    "runs",
    "schema",
    "store",
)


def main(arguments: list[str]) -> int:
    """Run the command of a word, and return the process's exit code."""
    parser = argparse.ArgumentParser(prog="mlops", allow_abbrev=False)
    subparsers = parser.add_subparsers(required=True, metavar=" | ".join(WORDS))
    for word in WORDS:
        if word in arguments[:1]:
            importlib.import_module(f"mlops.commands.{word}").add_parser(subparsers)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options, Places.from_environment(), Console(highlight=False, width=_width())))
    except StepError as error:
        said = "\n".join(map(printable, str(error).split("\n")))  # it may name what others have written
        Console(stderr=True).print(f"mlops {arguments[0]}: {said}", style="red", markup=False, soft_wrap=True)
        return MISTAKEN
    except KeyboardInterrupt:
        return 130


def _width() -> int | None:
    """
    Return the width of the output: None for a terminal, which has its own. A file or a pipe has none; rich would cut it
    at 80.
    """
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
