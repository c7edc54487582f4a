"""The mistakes of a pipeline, gathered: after one the rehearsal goes on with whatever does not depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mlops.code import recipe_line
from mlops.contract.step import StepError


class Problem(NamedTuple):
    keys: tuple[str, ...]
    """Where the setting stands in the pipeline: ``("validate", "slices", "0")``."""
    message: str
    """What is wrong, and what would do; may have several lines."""


@dataclass(frozen=True, slots=True)
class Problems:
    """
    :param home: project folder, to which the lines of a recipe are relative
    """

    home: Path
    found: list[Problem] = field(default_factory=list)

    def add(self, *keys: str, message: str) -> None:
        """Note a mistake; one that is known from another setting is told once."""
        if message not in [problem.message for problem in self.found]:
            self.found.append(Problem(keys, message))

    @contextmanager
    def caught(self, *keys: str) -> Iterator[None]:
        """Note what is raised within, as a mistake of the setting at these keys, and go on after it."""
        try:
            yield
        except StepError as error:
            self.add(*keys, message=str(error))
        except Exception as error:  # code of a recipe may raise anything
            line = recipe_line(error, self.home)
            self.add(*keys, message=f"{f'{line}: ' if line else ''}{type(error).__name__}: {error}")
