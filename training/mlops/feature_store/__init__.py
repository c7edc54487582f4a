"""
The feature store: the rows of the features step in Feast, offline on the very shards, online in SQLite or Redis.

Importing this package imports Feast, which takes five seconds the usual way: only code that publishes or reads online
features imports it. Nothing here sends anything anywhere but to the two stores.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typeguard

from mlops.contract.step import scratch_parent


@contextmanager
def _quick_imports() -> Iterator[None]:
    """
    Import Feast in one second instead of five.

    Half of it is typeguard, which parses and compiles Feast's modules again to check the types of its arguments; a
    quarter is torch, which Feast imports for ``to_tensor`` alone and does without where it is not installed.
    """
    checked = typeguard.typechecked
    torch_is_loaded = "torch" in sys.modules
    typeguard.typechecked = _unchecked
    if not torch_is_loaded:
        sys.modules["torch"] = None  # type: ignore[assignment]  # "import torch" then raises ImportError
    try:
        yield
    finally:
        typeguard.typechecked = checked
        if not torch_is_loaded:
            del sys.modules["torch"]


def _unchecked(target: Any = None, **_: Any) -> Any:
    identity: Callable[[Any], Any] = lambda decorated: decorated  # noqa: E731
    return identity if target is None else target


# Feast makes a folder for its server's metrics as it is imported, which a killed process leaves: a step has one.
if (scratch := scratch_parent()) is not None:
    os.environ.setdefault("PROMETHEUS_MULTIPROCESS_DIR", str(scratch))
with _quick_imports():
    import feast  # noqa: F401

logging.getLogger("feast").setLevel(logging.WARNING)
