"""
The user's code: imported from the checkout, packed into the store, and run again out of the store.

A recipe is the folder ``include/<pipeline>/``. It is stored whole beside what it produced, so that a model in
production is always run with the code it was trained with, whatever the checkout holds by then.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.util
import io
import os
import sys
import traceback
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.abc import PathEntryFinder
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, TypeVar

from mlops.contract.code_files import code_files
from mlops.contract.extensions import RECIPES, ExtensionPoint, is_of_recipe, recipe_of
from mlops.contract.recipe_bounds import ways_out
from mlops.contract.recipe_bundles import pack
from mlops.contract.step import BadConfigError, StepError

SpecT = TypeVar("SpecT")
BUNDLE: Final = "_bundle_"
"""Begins the name of the package that stored code is imported as."""


def recipe_folder(home: Path, import_path: str) -> Path:
    """
    Return the folder that is stored with the object that an import path names: ``home/include/<pipeline>``.

    :raises BadConfigError: where the path names no module in a folder, or the folder is not there
    """
    folder = home.joinpath(*recipe_of(import_path))
    if not folder.is_dir():
        raise BadConfigError(f"{import_path!r}: there is no folder {folder}; check the path and {home}")
    return folder


@dataclass(frozen=True, slots=True)
class RecipeLine:
    """A line of a recipe, ``include/taxi/model.py:24``."""

    path: Path
    """Relative to the project folder; of stored code, to the recipe's own."""
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def recipe_line(error: BaseException, home: Path) -> RecipeLine | None:
    """Return the last line of a recipe, in the checkout or as it was stored, that an error went through, if any."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(home / RECIPES):
            return RecipeLine(path.relative_to(home), frame.lineno or 0, frame.name)
        bundles = [at for at, part in enumerate(path.parts) if part.startswith(BUNDLE)]
        if bundles:
            return RecipeLine(Path(*path.parts[bundles[0] + 1 :]), frame.lineno or 0, frame.name)
    return None


def load_attribute(import_path: str, home: Path) -> object:
    """
    Import ``package.module:name`` from the checkout.

    :raises BadConfigError: with module, name, reason and fix where that fails, or where its recipe takes code from
        outside of its folder
    """
    module_name, _, name = import_path.partition(":")
    if is_of_recipe(import_path):
        _check_bounds(home.joinpath(*recipe_of(import_path)))
    if str(home) not in sys.path:
        sys.path.insert(0, str(home))
    _compile_from_source(os.path.abspath(home / RECIPES))
    importlib.invalidate_caches()
    return _attribute(_import(module_name, import_path, str(home)), name, import_path)


def bundle(folder: Path) -> bytes:
    """
    Pack a recipe's code files into a zip. Equal files give equal bytes.

    :raises BadConfigError: where a file imports ``include...`` absolutely: run out of the bundle it would mix stored
        code with whatever the checkout then holds; or where something leads out of the folder
    """
    _check_bounds(folder, stored=True)
    for file in code_files(folder):
        if file.suffix == ".py":
            _check_syntax(file)
    return pack(folder)


def load_bundled(data: bytes, import_path: str, scratch: Path) -> object:
    """
    Import ``package.module:name`` out of a bundle, as a package of its own name beside the live modules.

    :param scratch: a folder for the unpacked files; must stay as long as the code is in use
    """
    package = f"{BUNDLE}{hashlib.sha256(data).hexdigest()[:12]}"
    folder = scratch / package
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(folder)
    importlib.invalidate_caches()
    if package in sys.modules:
        # Loaded before, perhaps from a scratch folder that is gone.
        sys.modules[package].__path__ = [str(folder)]
    else:
        _create_package(package, folder)
    inner = import_path.partition(":")[0].split(".")[len(recipe_of(import_path)) :]
    module = _import(".".join((package, *inner)), import_path, "the stored bundle")
    return _attribute(module, import_path.partition(":")[2], import_path)


def load_extension(point: ExtensionPoint, name: str, declaration: type[SpecT], own: Callable[[str], object]) -> SpecT:
    """
    Load the declaration that a pipeline names: one of ours, of an installed package, or of its recipe.

    :param own: loads code of a recipe by its import path, from the checkout or from a bundle
    :raises BadConfigError: where there is none, it cannot be imported, or it is something else
    """
    found = own(name) if is_of_recipe(name) else point.load(name)
    if not isinstance(found, declaration):
        raise BadConfigError(f"{point.kind} {name!r} is a {type(found).__name__}, no {declaration.__name__}")
    return found


def resolved(target: str | Callable[..., Any], own: Callable[[str], object]) -> Any:
    """
    Return what a declaration names by its import path, or holds itself.

    :param own: as of :func:`load_extension`
    :raises BadConfigError: where it cannot be imported
    """
    if not isinstance(target, str):
        return target
    if is_of_recipe(target):
        return own(target)
    module, _, name = target.partition(":")
    return _attribute(_import(module, target, "what is installed"), name, target)


class _FromSource(SourceFileLoader):
    """
    Compiles a module each time that it is imported.

    Python takes byte code for that of a source of the same size and of the same second. Code that was edited at once,
    or comes from an image or a sync that sets all times alike, would run as it was, and be recorded as it is.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


@cache
def _compile_from_source(recipes: str) -> None:
    """Have modules below this folder imported by :class:`_FromSource`."""
    find = FileFinder.path_hook((ExtensionFileLoader, EXTENSION_SUFFIXES), (_FromSource, SOURCE_SUFFIXES))

    def is_below(entry: str) -> bool:
        return Path(os.path.abspath(entry)).is_relative_to(recipes)

    def hook(entry: str) -> PathEntryFinder:
        if not is_below(entry):
            raise ImportError(f"{entry} is not below {recipes}")  # as the import system asks of a hook
        return find(entry)

    sys.path_hooks.insert(0, hook)
    for entry in list(filter(is_below, sys.path_importer_cache)):
        del sys.path_importer_cache[entry]


def _import(module_name: str, import_path: str, origin: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except StepError:
        raise  # a definition in it says itself what is wrong, and where
    except Exception as error:  # a user's module may raise anything
        raise BadConfigError(
            f"cannot import {module_name!r} of {import_path!r} from {origin}: {type(error).__name__}: {error}. "
            f"{_fix(module_name, error)}"
        ) from error


def _fix(module_name: str, error: Exception) -> str:
    """Say what would do about a module that cannot be imported."""
    lacking = ((isinstance(error, ModuleNotFoundError) and error.name) or module_name).partition(".")[0]
    if lacking != module_name.partition(".")[0]:
        return f"Install {lacking!r} in the runtime of the step's process, or in the image of its pod"
    return "Check the path in the pipeline, and that the module imports by itself"


def _attribute(module: ModuleType, name: str, import_path: str) -> object:
    if hasattr(module, name):
        return getattr(module, name)
    public = [known for known in vars(module) if not known.startswith("_")]
    close = difflib.get_close_matches(name, public, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"it defines {', '.join(sorted(public)) or 'nothing'}"
    raise BadConfigError(f"{import_path!r}: module {module.__name__!r} has no {name!r}; {hint}")


def _create_package(package: str, folder: Path) -> None:
    init = folder / "__init__.py"
    if not init.exists():
        module = ModuleType(package)
        module.__path__ = [str(folder)]
        sys.modules[package] = module
        return
    spec = importlib.util.spec_from_file_location(package, init, submodule_search_locations=[str(folder)])
    assert spec is not None
    assert spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[package]
        raise


def _check_syntax(file: Path) -> None:
    try:
        ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as error:
        raise BadConfigError(f"{file}:{error.lineno}: {error.msg}") from error


def _check_bounds(folder: Path, *, stored: bool = False) -> None:
    if (problem := next(ways_out(folder, stored=stored), None)) is not None:
        raise BadConfigError(problem)
