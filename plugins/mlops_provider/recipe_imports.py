"""Which modules of ours a recipe imports: the public surface, ``from mlops import ...``, is all that it may rely on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from mlops.contract.code_files import code_files
from mlops.contract.public_names import MODULE_OF

OURS = ("mlops", "mlops_provider")


def internal_imports(folder: Path) -> Iterator[str]:
    """
    A sentence for each import of a module that may change or go, with file, line, column and what to write instead.

    :param folder: of the recipe
    """
    for file in code_files(folder):
        if file.suffix != ".py":
            continue
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError) as error:
            yield f"{file}: it cannot be read as Python: {error}"
            continue
        for node in ast.walk(tree):
            for module, names in _imported(node):
                place = f"{file}:{getattr(node, 'lineno', 1)}:{getattr(node, 'col_offset', 0) + 1}"
                yield f"{place}: {module} is internal and may change; {_instead(names)}"


def _imported(node: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Each internal module that a statement imports from, and the names."""
    match node:
        case ast.Import(names=aliases):
            for alias in aliases:
                if alias.name.partition(".")[0] in OURS and alias.name != "mlops":
                    yield alias.name, []
        case ast.ImportFrom(module=str() as module, names=aliases, level=0):
            if module.partition(".")[0] in OURS and module != "mlops":
                yield module, [alias.name for alias in aliases]
            elif module == "mlops" and (inner := [a.name for a in aliases if a.name not in MODULE_OF]):
                yield from ((f"mlops.{name}", []) for name in inner)


def _instead(names: list[str]) -> str:
    if names and all(name in MODULE_OF for name in names):
        return f"write: from mlops import {', '.join(names)}"
    return f"of mlops a recipe may import {', '.join(MODULE_OF)}"
