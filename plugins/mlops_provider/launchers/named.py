"""Launchers by their names."""

from __future__ import annotations

from mlops_provider.launcher_names import LAUNCHERS
from mlops_provider.launchers.base import Launcher


def launcher_class(name: str) -> type[Launcher]:
    """
    Import a launcher. What the pods' launcher needs of Kubernetes takes a second: only where a step runs.

    :raises SpecError: where no launcher has this name, or it cannot be imported
    """
    found: type[Launcher] = LAUNCHERS.load(name)
    return found
