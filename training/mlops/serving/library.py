"""The part of this library, and of what is installed, that a model needs where it is served."""

from __future__ import annotations

import ast
import io
import re
import sys
import zipfile
from collections.abc import Collection, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mlops.contract.public_names import MODULE_OF
from mlops.contract.recipe_bundles import ZIP_DATE
from mlops.contract.step import BadConfigError
from mlops.process import lock_file

LOCK: Final = lock_file("requirements.txt")
_PACKAGE: Final = "mlops"
_ROOT: Final = Path(__file__).parents[1]
_ALWAYS: Final = ("mlflow", "pandas")


def imports_of(text: str, *, lazily: bool) -> set[str]:
    """
    Return the modules that a file imports from elsewhere; of ``from a import b`` both ``a`` and ``a.b``, which may be
    one. Of this library's public names also those that it uses as ``mlops.NAME``, or imports by ``*``.

    :param lazily: include those that its functions import
    """
    tree = ast.parse(text)
    packages = {_bound(alias) for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}

    def walk(node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
                return
            case ast.ImportFrom(module="mlops", names=[ast.alias(name="*")], level=0):
                used = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
                yield from (_PACKAGE, *(f"{_PACKAGE}.{name}" for name in used & MODULE_OF.keys()))
                return
            case ast.ImportFrom(module=str() as module, names=names, level=0):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)
                return
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in packages:
                # The package imports a public name when it is asked for it.
                yield f"{_PACKAGE}.{attribute}"
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not lazily:
                return
            case ast.If(test=test, orelse=orelse) if "TYPE_CHECKING" in ast.unparse(test):
                children: Iterable[ast.AST] = orelse
            case _:
                children = ast.iter_child_nodes(node)
        for child in children:
            yield from walk(child)

    return set(walk(tree))


def _bound(alias: ast.alias) -> str | None:
    """Return the name that an import gives this library's package; None where it imports something else."""
    if alias.asname is None:
        return _PACKAGE if alias.name.partition(".")[0] == _PACKAGE else None
    return alias.asname if alias.name == _PACKAGE else None


def closure(modules: Iterable[str]) -> tuple[dict[str, Path], set[str]]:
    """
    Find all modules of this library that some modules import, directly or indirectly.

    :return: files by their module; and imported packages of others
    """
    found: dict[str, Path] = {}
    others: set[str] = set()
    todo = list(modules)
    while todo:
        name = todo.pop()
        package, *inner = name.split(".")
        if package == _PACKAGE and len(inner) == 1 and inner[0] in MODULE_OF:
            package, *inner = MODULE_OF[inner[0]].split(".")
            name = ".".join([package, *inner])
        if package != _PACKAGE:
            others.add(package)
        elif name not in found and (path := _file(_ROOT.joinpath(*inner))):
            found[name] = path
            text = path.read_text()
            own = {imported for imported in imports_of(text, lazily=True) if imported.split(".")[0] == _PACKAGE}
            todo += [name.rpartition(".")[0] or name, *own, *imports_of(text, lazily=False)]
    return found, others - set(sys.stdlib_module_names)


def packed(modules: dict[str, Path]) -> bytes:
    """Return a zip that Python imports from; equal files give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(modules.items()):
            parents = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
            entry = zipfile.ZipInfo("/".join([*parents, path.name]), ZIP_DATE)
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def requirements(packages: Collection[str]) -> list[str]:
    """
    Return the requirements to be installed for packages to be imported, pinned as in the lock file; torch, and what is
    not in it, with what that requires, as they are installed here.

    :param packages: names of packages; some may be missing, because the model has just scored rows without them
    :raises BadConfigError: if one is a file of this machine
    """
    pins = dict(re.findall(r"^([\w.-]+)(?:\[[^\]]*\])?==([^\s;]+)", LOCK.read_text(), re.MULTILINE))
    waiting: set[str] = set()
    for package in {*packages, *_ALWAYS}:
        names = _distributions(package)
        if not names and (spec := find_spec(package)) is not None:
            raise BadConfigError(
                f"the recipe imports {package!r} from {spec.origin or spec.submodule_search_locations}, which a server "
                "does not have: move it into the recipe's folder and import it relatively, or install it as a package"
            )
        waiting |= names
    found: dict[str, str] = {}
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        # Without the build (+cpu, +cu130): the server's machine may have another.
        found[name] = pins.get(name) or version(name).partition("+")[0]
        if name not in {*pins, "torch"}:
            waiting |= _required(name)
    return [f"{name}=={pin}" for name, pin in sorted(found.items())]


def _required(name: str) -> set[str]:
    """Return the installed distributions that a distribution requires."""
    needed = map(Requirement, requires(name) or ())
    names = {each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})}
    return set().union(*map(_distributions, names))


def _distributions(package: str) -> set[str]:
    """Return the installed distributions that hold a package; empty if it is not installed."""
    try:
        distribution(package)
    except PackageNotFoundError:
        # Reads the lists of files of all that is installed: half a second.
        return set(packages_distributions().get(package, ()))
    return {package}


def _file(path: Path) -> Path | None:
    """Return the file of a module; None if the path is that of a name within a module."""
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)
