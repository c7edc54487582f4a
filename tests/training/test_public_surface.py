"""The public surface: what recipes and packages of others rely on. A change of it shows in the golden file's diff."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mlops
from mlops.contract.public_names import MODULE_OF

GOLDEN = Path(__file__).parent / "golden/public_surface.txt"


def described(name: str, value: Any) -> str:
    """Signatures of a function, or of a class and its public methods, or a type as it prints."""
    if not callable(value) or (not inspect.isclass(value) and not inspect.isfunction(value)):
        return f"{name} = {value}\n"
    protocol = getattr(value, "_is_protocol", False)
    lines = [f"protocol {name}" if protocol else f"{name}{inspect.signature(value)}"]
    for method, function in sorted(vars(value).items()) if inspect.isclass(value) else []:
        if method.startswith("_"):
            continue
        if isinstance(function, property):
            lines.append(f"    {method}: {inspect.signature(function.fget).return_annotation}")
        elif isinstance(function, classmethod | staticmethod) or inspect.isfunction(function):
            lines.append(f"    {method}{inspect.signature(getattr(value, method))}")
    return "\n".join(lines) + "\n"


def test_names_and_signatures_are_those_of_the_golden_file() -> None:
    found = "\n".join(described(name, getattr(mlops, name)) for name in mlops.__all__)
    assert found == GOLDEN.read_text(), f"if the change is meant, write it to {GOLDEN}, and say so in CHANGELOG.md"


def test_what_type_checkers_see_is_what_there_is() -> None:
    """Broken: an editor would offer a name that is not there, or call one unknown that is."""
    tree = ast.parse(Path(mlops.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: statement.module
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert seen == MODULE_OF
    assert list(mlops.__all__) == sorted(MODULE_OF, key=lambda name: (not name[0].isupper(), name)) == dir(mlops)


def test_a_name_that_is_not_public_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        AttributeError, match="module 'mlops' has no public name 'Featureset'; it has BadConfigError, BadDataError"
    ):
        _ = mlops.Featureset


def test_the_surface_itself_loads_no_library() -> None:
    """Broken: the scheduler would import numpy and torch, and a features step wait for torch."""
    script = "import sys, mlops; from mlops import FeatureSet; print(*sorted({'torch', 'mlflow'} & set(sys.modules)))"
    only = "import sys, mlops; print(*sorted({'numpy', 'polars', 'narwhals', 'torch', 'pydantic'} & set(sys.modules)))"
    for each in (script, only):
        done = subprocess.run([sys.executable, "-c", each], capture_output=True, text=True, check=True)
        assert done.stdout == "\n"
