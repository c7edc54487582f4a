"""What other packages may add, found by its name among ours, by its import path, or as an entry point."""

from __future__ import annotations

import difflib
import functools
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final

from mlops.contract.section import SpecError, leaves, within
from mlops.contract.step import BadConfigError

RECIPES: Final = "include"
"""Top-level package of the recipes; within a recipe, imports of it must be relative."""
_IN_RECIPE: Final = re.compile(rf"{RECIPES}(\.\w+)+:\w|{RECIPES}(/[\w.-]+)+\.sql$")
_IMPORT_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class ExtensionPoint:
    """
    One kind of thing of which packages add more.

    A name is looked for among ours first, then as ``package.module:attribute``, then among the entry points of the
    installed packages: ours never cost a look through these.
    """

    kind: str
    """What it is, for messages: ``launcher``."""
    group: str
    """Group of the entry points: ``mlops.launchers``."""
    builtin: Mapping[str, str]
    """Import path of each of ours, by its name."""
    attributes: Sequence[str]
    """What it must have, by the protocol."""
    written: Mapping[str, str] = field(default_factory=dict)
    """How a name is written in full, where it takes more than the name: ``ndcg@K`` of ``ndcg``."""

    def import_path(self, name: str) -> str:
        """
        Return the import path for a name; nothing is imported.

        :raises SpecError: where nothing has this name
        """
        if name in self.builtin:
            return self.builtin[name]
        if _IMPORT_PATH.fullmatch(name):
            return name
        others = installed(self.group)
        if name in others:
            return others[name]
        raise SpecError(f"{self.kind} must be {self.wanted(name)}, got {name!r}")

    def check_named(self, name: str) -> str:
        """
        Return a name after a check that something has it; nothing is imported.

        :raises ValueError: saying what would do, where nothing has this name
        """
        try:
            self.import_path(name)
        except SpecError:
            raise ValueError(self.wanted(name)) from None
        return name

    def check_known(self, name: str) -> str:
        """
        Return a name after a check that one of ours or of an installed package's has it; an import path may be any.

        :raises ValueError: saying what would do, where nothing has this name, or it cannot be imported
        """
        if by_import_path(name):
            return name
        self.check_named(name)
        try:
            self.load(name)
        except SpecError as error:
            raise ValueError(f"one that can be imported: {error}") from None
        return name

    def check_short(self, name: object) -> object:
        """
        As :meth:`check_known`, before it is clear how the name is written: ``TPE`` is told what there is.

        :raises ValueError: as there
        """
        return name if not isinstance(name, str) or by_import_path(name) else self.check_known(name)

    def checked_settings(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """
        Return settings with the defaults of the section of what has this name; those of an import path as they are.

        :raises ValidationError: of pydantic, where the section refuses them
        """
        if by_import_path(name):
            return dict(settings)
        return within(self.load(name).section, settings)

    def wanted(self, name: str) -> str:
        """Say what would do in the place of a name that nothing has."""
        known = [*self.builtin, *installed(self.group)]
        near = difflib.get_close_matches(name.lower(), known, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        names = ", ".join(self.written.get(each, each) for each in known)
        return (
            f"one of {names}{meant}, package.module:attribute, or an entry point of an installed package in the group "
            f"{self.group}"
        )

    def load(self, name: str) -> Any:
        """
        Import what has this name.

        :raises SpecError: where nothing has this name, it cannot be imported, or it is something else
        """
        path = self.import_path(name)
        module, _, attribute = path.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (Exception, SystemExit) as error:  # of somebody's module, whatever it does when it is imported
            kind = "" if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: "
            raise SpecError(f"{self.kind} {name!r}: cannot import {path}: {kind}{error}") from error
        if missing := [each for each in self.attributes if not hasattr(found, each)]:
            raise SpecError(f"{self.kind} {name!r}: {path} is none, it has no {', '.join(missing)}")
        return found


def by_import_path(name: str) -> bool:
    """Tell ``package.module:NAME``, which the scheduler does not import, as it may be code of a recipe."""
    return ":" in name


def is_of_recipe(import_path: str) -> bool:
    """Tell code of a recipe from what is installed."""
    return import_path.partition(".")[0] == RECIPES


def recipe_of(import_path: str) -> tuple[str, ...]:
    """
    Return the parts of the path of a recipe's folder: ``include``, ``<pipeline>``.

    :raises BadConfigError: where the import path names no module in a folder
    """
    parts = tuple(import_path.partition(":")[0].split("."))
    if len(parts) < 2:
        raise BadConfigError(f"{import_path!r} is not in a recipe; write it as {RECIPES}.<pipeline>.<module>:<name>")
    return parts[: min(2, len(parts) - 1)]


def recipe_folders(settings: Mapping[str, Any]) -> list[str]:
    """
    Return the folders, ``include/<pipeline>``, of all recipes whose code or SQL the settings name, each once.

    All settings count, for what an extension is given may name code as well as the extension itself.
    """
    named = {value for _, value in leaves(settings) if isinstance(value, str) and _IN_RECIPE.match(value)}
    return sorted({"/".join(name.split("/")[:2] if name.endswith(".sql") else recipe_of(name)) for name in named})


@functools.cache
def installed(group: str) -> Mapping[str, str]:
    """Return the import path of each entry point of a group, by its name; looked up once in a process."""
    # Of two packages with one name the first on the path counts, as for an import.
    found: dict[str, str] = {}
    for each in metadata.entry_points(group=group):
        found.setdefault(each.name, each.value.replace(" ", "").partition("[")[0])
    return found
