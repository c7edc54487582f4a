"""
References between steps: one straight line from data to a registered model.

``DatasetRef <- ValidationRef <- FeaturesRef <- CheckpointRef <- ReportRef <- ModelVersionRef``

Each step takes one ref and returns one; each ref holds its parent, so a model version names the exact
bytes it came from. Plain JSON on the wire, frozen dataclasses inside. Standard library only: the airflow
runtime and the step processes import this module alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, TypeVar


class RefError(ValueError):
    """A document that should be a ref is not one, or is one of another kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """An immutable object of the store; ``sha256`` is the digest of its bytes, so that any reader can check it."""

    key: str
    sha256: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ref:
    """What one step committed. ``place`` is its folder in the store; ``artifacts`` are the files that belong to it."""

    kind: ClassVar[str]
    parent_type: ClassVar[type[Ref] | None] = None

    place: str
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"kind": self.kind}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.name == "artifacts":
                value = {
                    name: {"key": a.key, "sha256": a.sha256, "num_bytes": a.num_bytes}
                    for name, a in sorted(value.items())
                }
            elif isinstance(value, Ref):
                value = value.to_wire()
            wire[spec.name] = value
        return wire

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """
        Read a ref of this class.

        :raises RefError: where ``wire`` is no ref, one of another kind, or has missing or unknown fields
        """
        if not isinstance(wire, Mapping) or "kind" not in wire:
            raise RefError(f"expected a {cls.__name__} document, got {_shorten(wire)}")
        if wire["kind"] != cls.kind:
            raise RefError(f"expected a {cls.__name__}, got a ref of kind {wire['kind']!r}")
        known = {spec.name for spec in fields(cls)}
        given = set(wire) - {"kind"}
        if unknown := given - known:
            raise RefError(f"{cls.__name__} has no field {sorted(unknown)[0]!r}; it was written by another version")
        if missing := known - given:
            raise RefError(f"{cls.__name__} document lacks the field {sorted(missing)[0]!r}")
        values = {name: wire[name] for name in given}
        values["artifacts"] = {name: Artifact(**a) for name, a in wire["artifacts"].items()}
        if cls.parent_type is not None:
            values["parent"] = cls.parent_type.from_wire(wire["parent"])
        return cls(**values)

    def lineage(self) -> Iterator[Ref]:
        """This ref, its parent, and so on back to the dataset."""
        ref: Ref | None = self
        while ref is not None:
            yield ref
            ref = getattr(ref, "parent", None)

    def ancestor(self, kind: type[RefT]) -> RefT:
        """The ref of that class on the way back to the dataset."""
        for ref in self.lineage():
            if isinstance(ref, kind):
                return ref
        raise RefError(f"a {type(self).__name__} has no {kind.__name__} among its ancestors")

    def digest(self) -> str:
        """SHA-256 over the canonical wire form, hence over the whole lineage."""
        return digest_of(self.to_wire())


RefT = TypeVar("RefT", bound=Ref)


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetRef(Ref):
    """An immutable snapshot of a dataset. Artifact: ``manifest``."""

    kind: ClassVar[str] = "dataset"

    name: str
    version: str
    """SHA-256 of the manifest's content: equal rows of equal intervals give equal versions."""
    schema_hash: str
    """SHA-256 of column names and types."""
    num_rows: int
    num_bytes: int
    interval_start: str
    """First instant of the data window, ISO 8601, UTC."""
    interval_end: str
    """As-of time: nothing that became known at or after it is in the snapshot. ISO 8601, UTC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationRef(Ref):
    """Exists only where validation passed. Artifacts: ``report``, ``statistics``."""

    kind: ClassVar[str] = "validation"
    parent_type: ClassVar[type[Ref] | None] = DatasetRef

    schema_sha256: str
    """Digest of the schema.pbtxt that the data was held against."""
    num_checks: int
    parent: DatasetRef


@dataclass(frozen=True, kw_only=True, slots=True)
class FeaturesRef(Ref):
    """Materialised features. Artifacts: ``manifest`` (shards of each split), ``state`` (fitted), ``code`` (bundle)."""

    kind: ClassVar[str] = "features"
    parent_type: ClassVar[type[Ref] | None] = ValidationRef

    version: str
    """Hash of the feature set's code, state schema and engine; of a token set's code and tokenizer."""
    num_features: int
    """Columns of the model's input; of tokens, those of a sequence."""
    num_samples: Mapping[str, int]
    """Samples per split: rows, or query groups where the set groups rows, or sequences of tokens."""
    parent: ValidationRef


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRef(Ref):
    """The best checkpoint of a training. Artifacts: ``weights``, ``code``, ``history`` (metrics per epoch)."""

    kind: ClassVar[str] = "checkpoint"
    parent_type: ClassVar[type[Ref] | None] = FeaturesRef

    epoch: int
    metrics: Mapping[str, float]
    """Metrics of that epoch on the validation split."""
    seed: int
    world_size: int
    tracking_run: str
    """MLflow run id."""
    parent: FeaturesRef


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportRef(Ref):
    """An evaluation and its verdict. Artifacts: ``report`` (HTML), ``metrics`` (JSON)."""

    kind: ClassVar[str] = "report"
    parent_type: ClassVar[type[Ref] | None] = CheckpointRef

    passed: bool
    reason: str
    """One sentence for people: why the candidate may or may not be registered."""
    metrics: Mapping[str, float]
    champion: str | None
    """Version of the production model it was judged against; None where there was none."""
    parent: CheckpointRef


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelVersionRef(Ref):
    """A version in the model registry."""

    kind: ClassVar[str] = "model_version"
    parent_type: ClassVar[type[Ref] | None] = ReportRef

    name: str
    version: str
    parent: ReportRef


KINDS: Mapping[str, type[Ref]] = {
    cls.kind: cls for cls in (DatasetRef, ValidationRef, FeaturesRef, CheckpointRef, ReportRef, ModelVersionRef)
}


def ref_from_wire(wire: object) -> Ref:
    """Read a ref of whatever kind the document names."""
    if not isinstance(wire, Mapping) or wire.get("kind") not in KINDS:
        raise RefError(f"not a ref: {_shorten(wire)}; known kinds are {', '.join(KINDS)}")
    return KINDS[wire["kind"]].from_wire(wire)


def canonical_json(document: object) -> bytes:
    """JSON with sorted keys and no spaces: equal documents give equal bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(document: object) -> str:
    """SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(document)).hexdigest()


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
