"""What a pipeline names of its recipe: modules, the names in them, and files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mlops.code import load_attribute
from mlops.contract.extensions import is_of_recipe
from mlops.contract.section import PROGRAM_PATTERN, TRANSFORM_PATTERN, leaves
from mlops.rehearsal.problems import Problems

_ARGUMENT: Final = "@"
"""What follows is an argument of a metric: ``include.taxi.metric:HITS@10``."""


def names_of_recipe(sections: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """
    Each import path of a recipe, and each file of its code, with the keys of its setting.

    :param sections: settings by step
    """
    for keys, value in leaves(sections):
        if not isinstance(value, str):
            continue
        path = value.partition(_ARGUMENT)[0]
        is_sql = value.endswith(".sql") and re.match(TRANSFORM_PATTERN, value)
        if is_of_recipe(path) or is_sql or re.match(PROGRAM_PATTERN, value):
            yield keys, path


def check_names(sections: Mapping[str, Any], problems: Problems) -> None:
    """Import whatever of the recipe the settings name, and look for its files."""
    for keys, path in names_of_recipe(sections):
        if not is_of_recipe(path):
            if (message := file_problem(path, problems.home)) is not None:
                problems.add(*keys, message=message)
            continue
        with problems.caught(*keys):
            load_attribute(path, problems.home)


def file_problem(path: str, home: Path) -> str | None:
    """Say that there is no such file, and which may be meant; None where there is."""
    file = home / path
    if file.is_file():
        return None
    there = sorted(each.name for each in file.parent.glob(f"*{file.suffix}"))
    near = difflib.get_close_matches(file.name, there, n=1)
    return f"there is no file {path} in {home}" + (f"; did you mean {near[0]}?" if near else "")
