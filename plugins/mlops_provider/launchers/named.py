"""Launchers by their names."""

from __future__ import annotations

import importlib

from mlops_provider.deployment import LAUNCHERS
from mlops_provider.launchers.base import Launcher


def launcher_class(name: str) -> type[Launcher]:
    """:param name: one of :data:`mlops_provider.deployment.LAUNCHERS`"""
    module, _, attribute = LAUNCHERS[name].partition(":")
    # Imported when it is needed: what the pods' launcher needs of Kubernetes takes a second.
    found: type[Launcher] = getattr(importlib.import_module(module), attribute)
    return found
