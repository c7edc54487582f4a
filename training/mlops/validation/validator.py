"""
TFDV's own validator, without TFDV's Python package.

It is C++ in the ``tensorflow-data-validation`` wheel. Loading that one library takes a tenth of a second and needs
neither TensorFlow nor Beam, where importing the package needs both and 18 s. The binding is private to TFDV: the
wheel is pinned, and tests hold what it returns.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from typing import Any, Final

from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2

_LIBRARY: Final = "tensorflow_data_validation_extension"
_NO_LIMIT: Final = 2**31 - 1


@cache
def _extension() -> Any:
    package = importlib.util.find_spec("tensorflow_data_validation")  # finds, does not import
    if package is None or not package.submodule_search_locations:
        raise ImportError("tensorflow-data-validation is not installed: this is not the validation runtime")
    folder = Path(package.submodule_search_locations[0], "pywrap")
    files = sorted(folder.glob(f"{_LIBRARY}*.so"))
    if not files:
        raise ImportError(
            f"no {_LIBRARY}*.so in {folder}: install the pinned wheel of training/requirements-validation.txt"
        )
    loader = ExtensionFileLoader(_LIBRARY, str(files[0]))
    module = importlib.util.module_from_spec(ModuleSpec(_LIBRARY, loader, origin=str(files[0])))
    loader.exec_module(module)
    return module.validation


def infer_schema(
    statistics: statistics_pb2.DatasetFeatureStatistics, *, max_domain_values: int = 50
) -> schema_pb2.Schema:
    """
    Return TFDV's proposal of a schema for the data.

    :param max_domain_values: strings with at most so many distinct values get a domain
    """
    infer_shape = False
    proposal = _extension().InferSchema(statistics.SerializeToString(), max_domain_values, infer_shape)
    return schema_pb2.Schema.FromString(proposal)


def update_schema(schema: schema_pb2.Schema, statistics: statistics_pb2.DatasetFeatureStatistics) -> schema_pb2.Schema:
    """Return the schema with the least change after which TFDV finds nothing wrong with the columns."""
    # A domain that got more values than a limit would be dropped.
    proposal = _extension().UpdateSchema(schema.SerializeToString(), statistics.SerializeToString(), _NO_LIMIT)
    return schema_pb2.Schema.FromString(proposal)


def validate_statistics(
    statistics: statistics_pb2.DatasetFeatureStatistics,
    schema: schema_pb2.Schema,
    previous: statistics_pb2.DatasetFeatureStatistics | None = None,
    serving: statistics_pb2.DatasetFeatureStatistics | None = None,
    environment: str = "",
) -> anomalies_pb2.Anomalies:
    """
    Check statistics against a schema.

    TFDV skips two checks in silence: any on data of zero rows, and those on ``previous`` or ``serving`` where it is
    not given. The caller must exclude both.

    :param previous: statistics that ``drift_comparator`` and ``num_examples_drift_comparator`` compare with
    :param serving: statistics that ``skew_comparator`` compares with
    :param environment: leaves out the features that are ``not_in_environment``, e.g. ``SERVING``
    """
    verdict = _extension().ValidateFeatureStatistics(
        statistics.SerializeToString(),
        schema.SerializeToString(),
        environment.encode(),
        previous.SerializeToString() if previous is not None else b"",
        serving.SerializeToString() if serving is not None else b"",
        b"",  # statistics of the previous version
        b"",  # features needed
        b"",  # validation config: every anomaly is an error
        False,  # no diff regions
    )
    return anomalies_pb2.Anomalies.FromString(verdict)
