"""
The commands that people run: ``mlops`` passes its arguments to ``python -m mlops.commands``.

Each module of this package is one first word: ``add_parser(subparsers)`` adds it and its commands, each with
``set_defaults(run=handler)``, where ``handler(options, places, console)`` returns the process's exit code. A module is
imported only if its word is used, because the words run in different runtimes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from mlops.contract.step import HOME_VARIABLE, STORE_VARIABLE, VALIDATION_PYTHON_VARIABLE, BadConfigError
from mlops.store import Store

MISTAKEN: Final = 2
"""Exit code if a command could not do its work; 1 is an answer: damaged, different."""

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """The locations that a command works with."""

    home: Path
    """Project folder, which holds ``include/``."""
    store: Store
    tracking_uri: str
    """Address of the MLflow server; empty if none is set."""
    pythons: Mapping[str, Path]
    """Interpreter of each runtime."""

    @classmethod
    def from_environment(cls) -> Places:
        """
        Read the locations from the environment variables that ``mlops`` sets.

        :raises BadConfigError: naming the variable that is not set
        """
        for name in (HOME_VARIABLE, STORE_VARIABLE):
            if not os.environ.get(name):
                raise BadConfigError(f"the environment variable {name} is not set; `mlops` sets it")
        home = Path(os.environ[HOME_VARIABLE])
        validation = os.environ.get(VALIDATION_PYTHON_VARIABLE) or home / ".venv/validation/bin/python"
        return cls(
            home=home,
            store=Store(os.environ[STORE_VARIABLE]),
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI", ""),
            pythons={"training": Path(sys.executable), "validation": Path(validation)},
        )
