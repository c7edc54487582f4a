"""What leads out of a recipe's folder. It is in no run key and not stored with a model, so it must not decide."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mlops.contract.code_files import code_files, is_passed_over
from mlops.contract.extensions import RECIPES

_WHY: Final = "a change of it would be neither in the run key nor stored with the model"


def ways_out(folder: Path, *, stored: bool = False) -> Iterator[str]:
    """
    Yield a sentence, with file, line and fix, for each import and each link to a folder that leads out of a recipe.

    A module that is no Python is passed over.

    :param folder: of the recipe, ``include/<pipeline>``
    :param stored: also report imports of the recipe by its absolute name, which lead out of its stored copy, to
        whatever the checkout then holds
    """
    for path, folders, _ in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_passed_over(name))
        for link in (os.path.join(path, name) for name in folders):
            if os.path.islink(link):
                yield (
                    f"{link}: is a link to a folder, {os.path.realpath(link)}: {_WHY}. Copy what the recipe needs into "
                    "it, and read data as a source"
                )
    for file in code_files(folder):
        if file.suffix == ".py":
            yield from _imports_from_outside(file, folder, stored)


def _imports_from_outside(file: Path, folder: Path, stored: bool) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError):  # ValueError: it has null bytes
        return
    depth = len(file.relative_to(folder).parts)
    own = (RECIPES,) if folder.name == RECIPES else (RECIPES, folder.name)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(level=level) if level > depth:
                yield (
                    f"{file}:{node.lineno}: imports {'.' * level}{node.module or node.names[0].name}, which is outside "
                    f"of {folder}: {_WHY}. Move it into this folder, or into a package that is installed"
                )
                continue
            case ast.ImportFrom(level=0, module=str() as module):
                names = [f"{module}.{each.name}" for each in node.names] if module == RECIPES else [module]
            case ast.Import():
                names = [each.name for each in node.names]
            case _:
                continue
        for name in names:
            parts = tuple(name.split("."))
            if parts[0] == RECIPES and (stored or parts[: len(own)] != own):
                yield (
                    f"{file}:{node.lineno}: imports {name!r}; within a recipe import relatively "
                    f"(from .{parts[-1]} import ...), and keep recipes independent of each other: put what they share "
                    "into a package that is installed"
                )
