"""
Modules that the warm validation runtime imports once.

Nothing here may start a thread. Polars does when it is imported, so that Polars and our modules on top of it are left
to the step.
"""

from __future__ import annotations

import jinja2  # noqa: F401
import narwhals  # noqa: F401
import tensorflow_metadata.proto.v0.anomalies_pb2
import tensorflow_metadata.proto.v0.statistics_pb2  # noqa: F401

import mlops.data.snapshots.deprecation
import mlops.store  # noqa: F401
