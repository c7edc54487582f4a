"""
The schema: TFDV's ``schema.pbtxt``, a text file in git that says what the data must look like.

A constraint that this gate would not check is refused rather than ignored.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from mlops.contract.step import BadConfigError
from mlops.validation.statistics import NUM_RANKED_VALUES

_UNCHECKED_FEATURE_FIELDS: Final = {
    "skew_comparator": "set validate.drift.columns in the pipeline instead",
    "drift_comparator": "set validate.drift.columns in the pipeline instead",
    "distribution_constraints": "remove it",
    "unique_constraints": "set validate.unique in the pipeline instead",
}
_UNCHECKED_DATASET_FIELDS: Final = ("num_examples_drift_comparator", "num_examples_version_comparator")
_DOMAIN_BOUNDS: Final = ("int_domain", "float_domain")

TRAINING: Final = "TRAINING"
SERVING: Final = "SERVING"
ENVIRONMENTS: Final = (TRAINING, SERVING)
"""
Environments in which data occurs; ``not_in_environment: "SERVING"`` on a label means that it is not known at serving.
"""

SchemaType = schema_pb2.FeatureType


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """What the data must look like: the file in git, or what is proposed for it."""

    path: str
    """Path of the file as the pipeline names it, for messages."""
    proto: schema_pb2.Schema
    sha256: str
    """Digest of the file's bytes."""
    proposal: bytes | None = None
    """The text of a schema that is not in git yet, for nobody has taken it over; None: it is there."""

    @property
    def columns(self) -> list[str]:
        """Columns that the data must have."""
        return [feature.name for feature in expected_features(self.proto)]

    def domain_values(self, column: str) -> list[str]:
        """Return the strings that a column may hold; empty if it may hold any."""
        feature = self.feature(column)
        if feature is None:
            return []
        if feature.HasField("string_domain"):
            return list(feature.string_domain.value)
        shared = {domain.name: domain for domain in self.proto.string_domain}
        return list(shared[feature.domain].value) if feature.domain in shared else []

    def feature(self, column: str) -> schema_pb2.Feature | None:
        return next((feature for feature in self.proto.feature if feature.name == column), None)


def read_schema(path: Path, shown_as: str) -> Schema:
    """
    Read and check a schema.

    :param shown_as: the path as the pipeline's author wrote it
    :raises FileNotFoundError: where there is none
    :raises BadConfigError: with file, line and column where it cannot be read, or asks for what is not checked
    """
    return _parse(path.read_bytes(), shown_as)


def proposed_schema(text: bytes, path: str) -> Schema:
    """
    Read a schema that was proposed for a file that does not exist yet.

    :param path: of that file, for messages
    """
    return replace(_parse(text, path), proposal=text)


def _parse(content: bytes, shown_as: str) -> Schema:
    proto = schema_pb2.Schema()
    try:
        text_format.Parse(content.decode("utf-8"), proto)
    except UnicodeDecodeError as error:
        raise BadConfigError(f"{shown_as}: not UTF-8 text: {error.reason} at byte {error.start}") from error
    except text_format.ParseError as error:
        reason = str(error).split(" : ", 1)[-1]
        raise BadConfigError(f"{shown_as}:{error.GetLine()}:{error.GetColumn()}: {reason}") from error
    _check(proto, shown_as)
    return Schema(path=shown_as, proto=proto, sha256=hashlib.sha256(content).hexdigest())


def expected_features(proto: schema_pb2.Schema, environment: str = TRAINING) -> list[schema_pb2.Feature]:
    """
    Return the features that the data of an environment must have: neither deprecated, nor of a lifecycle stage that
    TFDV leaves out, nor of another environment.
    """
    out = (schema_pb2.DEPRECATED, schema_pb2.DISABLED, schema_pb2.PLANNED, schema_pb2.ALPHA, schema_pb2.DEBUG_ONLY)
    return [
        feature
        for feature in proto.feature
        if not feature.deprecated
        and feature.lifecycle_stage not in out
        and environment not in feature.not_in_environment
        and (environment in feature.in_environment or environment in (proto.default_environment or ENVIRONMENTS))
    ]


def count_checks(schema: Schema) -> int:
    """
    Count the single constraints of a schema: per column its presence, type, missing share, and each bound of its
    domain.
    """
    num_checks = 1  # no column besides
    for feature in expected_features(schema.proto):
        num_checks += 2
        num_checks += feature.presence.HasField("min_fraction") or feature.presence.HasField("min_count")
        num_checks += bool(schema.domain_values(feature.name))
        for name in _DOMAIN_BOUNDS:
            if feature.HasField(name):
                domain = getattr(feature, name)
                num_checks += sum(
                    field.name in {"min", "max", "disallow_nan", "disallow_inf"} for field, _ in domain.ListFields()
                )
    return num_checks


def _check(proto: schema_pb2.Schema, shown_as: str) -> None:
    if not proto.feature:
        raise BadConfigError(
            f"{shown_as}: has no feature; delete the file, and `mlops schema propose PIPELINE --write` makes one of "
            "the data"
        )
    for name in proto.default_environment:
        if name not in ENVIRONMENTS:
            raise BadConfigError(f"{shown_as}: names the environment {name!r}; there are {' and '.join(ENVIRONMENTS)}")
    domains = {domain.name for domain in proto.string_domain}
    for domain in (*proto.string_domain, *(feature.string_domain for feature in proto.feature)):
        if len(domain.value) >= NUM_RANKED_VALUES:
            raise BadConfigError(
                f"{shown_as}: the string_domain {domain.name!r} has {len(domain.value):,} values; the validator sees "
                f"the {NUM_RANKED_VALUES:,} most frequent of a column only, rarer unknown ones would pass: remove it"
            )
    seen: set[str] = set()
    for position, feature in enumerate(proto.feature, start=1):
        if not feature.name:
            raise BadConfigError(f"{shown_as}: feature number {position} has no name")
        where = f"{shown_as}: feature {feature.name!r}"
        if feature.name in seen:
            raise BadConfigError(f"{where} is there twice")
        seen.add(feature.name)
        if feature.type not in (SchemaType.BYTES, SchemaType.INT, SchemaType.FLOAT):
            raise BadConfigError(f"{where} needs a type: BYTES (strings), INT (also booleans and instants) or FLOAT")
        if feature.domain and feature.domain not in domains:
            raise BadConfigError(
                f"{where} names the domain {feature.domain!r}, which is not a string_domain of this file "
                f"(there are: {', '.join(sorted(domains)) or 'none'})"
            )
        for name in (*feature.in_environment, *feature.not_in_environment):
            if name not in ENVIRONMENTS:
                raise BadConfigError(f"{where} names the environment {name!r}; there are {' and '.join(ENVIRONMENTS)}")
        for name, fix in _UNCHECKED_FEATURE_FIELDS.items():
            if feature.HasField(name):
                raise BadConfigError(f"{where} has a {name}, which is not checked here: {fix}")
    for name in _UNCHECKED_DATASET_FIELDS:
        if proto.dataset_constraints.HasField(name):
            raise BadConfigError(f"{shown_as}: has a {name}; set validate.volume in the pipeline instead")
