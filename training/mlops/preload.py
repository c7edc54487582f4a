"""
Modules that the warm training runtime imports once: the third-party libraries that steps need, and the training.

Nothing here may start a thread. Polars does when it is imported, so that Polars and our modules on top of it are left
to the step; Arrow's allocator does unless it is configured not to.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_ALLOCATOR = "JE_ARROW_MALLOC_CONF"
_given = os.environ.get(_ALLOCATOR)
os.environ.setdefault(_ALLOCATOR, "background_thread:false")
# mlflow imports Polars for one constructor, where it is there.
sys.modules["polars"] = None  # type: ignore[assignment]
try:
    import jinja2  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import mlflow.data
    import mlflow.pyfunc
    import narwhals  # noqa: F401
    import optuna  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import scipy.stats  # noqa: F401
    import sqlalchemy  # noqa: F401

    import mlops.elastic.agent
    import mlops.elastic.preload
    import mlops.steps.execution
    import mlops.tracking.opening  # noqa: F401
finally:
    del sys.modules["polars"]
    if _given is None:
        del os.environ[_ALLOCATOR]


def _constructor(name: str) -> Any:
    if name != "from_polars":
        raise AttributeError(f"module 'mlflow.data' has no attribute {name!r}")
    from mlflow.data.polars_dataset import from_polars

    return from_polars


vars(mlflow.data)["__getattr__"] = _constructor
