"""
References between steps: one straight line from data to a registered model.

``DatasetRef <- ValidationRef <- FeaturesRef <- [StudyRef] <- CheckpointRef <- ReportRef <- ModelVersionRef``

and beside it ``DatasetRef <- [ValidationRef] <- PredictionsRef``.

Each step takes one ref and returns one; each ref holds its parent, so a model version names the exact
bytes it came from. Plain JSON on the wire, frozen dataclasses inside. Standard library only: the airflow
runtime and the step processes import this module alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, TypeVar

INPUT = "input"
"""Artifact of every ref: the input document of the step that made it."""
SHORTEST_VERSION = 6
"""Characters by which a snapshot may be named: the beginning of its version that no other one has."""
VERSION_PATTERN = rf"^[0-9a-f]{{{SHORTEST_VERSION},64}}$"
MANIFEST = "manifest"
"""Artifact of snapshots and features: JSON that names the objects they consist of, see :func:`named_in`."""


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
    parent_types: ClassVar[tuple[type[Ref], ...]] = ()

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

        :raises RefError: where ``wire`` is no ref, one of another kind, or has missing, unknown or wrong fields
        """
        _check_kind(wire, (cls,))
        assert isinstance(wire, Mapping)
        known = {spec.name for spec in fields(cls)}
        given = set(wire) - {"kind"}
        if unknown := given - known:
            raise RefError(f"{cls.__name__} has no field {sorted(unknown)[0]!r}; it was written by another version")
        if missing := known - given:
            raise RefError(f"{cls.__name__} document lacks the field {sorted(missing)[0]!r}")
        values = {name: wire[name] for name in given}
        try:
            values["artifacts"] = {name: Artifact(**a) for name, a in wire["artifacts"].items()}
        except (AttributeError, TypeError):
            raise RefError(f"{cls.__name__}: artifacts are {wire['artifacts']!r:.100}, and not files by name") from None
        if cls.parent_types:
            values["parent"] = ref_of(cls.parent_types, wire["parent"])
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
    """
    Exists only where validation passed. Artifacts: ``report``, ``statistics``; ``schema`` where it was a proposal that
    nobody had reviewed.
    """

    kind: ClassVar[str] = "validation"
    parent_types: ClassVar[tuple[type[Ref], ...]] = (DatasetRef,)

    schema_sha256: str
    """Digest of the schema.pbtxt that the data was held against."""
    num_checks: int
    parent: DatasetRef


@dataclass(frozen=True, kw_only=True, slots=True)
class FeaturesRef(Ref):
    """Materialised features. Artifacts: ``manifest`` (shards of each split), ``state`` (fitted), ``code`` (bundle)."""

    kind: ClassVar[str] = "features"
    parent_types: ClassVar[tuple[type[Ref], ...]] = (ValidationRef,)

    version: str
    """Hash of the feature set's code, state schema and engine; of a token set's code and tokenizer."""
    num_features: int
    """Columns of the model's input; of tokens, those of a sequence."""
    num_samples: Mapping[str, int]
    """Samples per split: rows, or query groups where the set groups rows, or sequences of tokens."""
    parent: ValidationRef


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRef(Ref):
    """One training of a study, to its end or until it was pruned. Nothing but the study looks at it."""

    kind: ClassVar[str] = "trial"
    parent_types: ClassVar[tuple[type[Ref], ...]] = (FeaturesRef,)

    number: int
    """From 0; the index of its task."""
    state: str
    """``complete`` or ``pruned``."""
    value: float
    """Value of the training's metric at the best epoch, or at the last one where the trial was pruned."""
    parameters: Mapping[str, Any]
    """As :attr:`StudyRef.parameters`."""
    tracking_run: str
    """MLflow run id."""
    parent: FeaturesRef


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRef(Ref):
    """What a tuning found. Artifacts: ``trials`` (JSON)."""

    kind: ClassVar[str] = "study"
    parent_types: ClassVar[tuple[type[Ref], ...]] = (FeaturesRef,)

    name: str
    """In the database of studies."""
    trials: Mapping[str, int]
    """Number of them by state: ``complete``, ``pruned``, ``failed``, ``not begun``."""
    best_trial: int
    best_value: float
    """Value of the training's metric on the validation split."""
    parameters: Mapping[str, Any]
    """The best trial's settings, which replace those of ``train``; of parts with dots: ``schedule.warmup_steps``."""
    tracking_run: str
    """MLflow run id; the trials' runs are its children."""
    parent: FeaturesRef


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRef(Ref):
    """
    The best checkpoint of a training. Artifacts: ``weights``, ``code``, ``history`` (metrics per epoch), ``trail``
    (digests of its steps; not of a program's), ``environment``, ``patch`` (of code that was not committed),
    ``initial_weights`` (the file that it started from), ``start`` (the marker of the checkpoint that it went on from),
    ``lost_best`` (a better epoch whose weights were lost in both copies: these are the best of those that are left).
    """

    kind: ClassVar[str] = "checkpoint"
    parent_types: ClassVar[tuple[type[Ref], ...]] = (FeaturesRef, StudyRef)

    epoch: int
    metrics: Mapping[str, float]
    """Metrics of that epoch on the validation split."""
    seed: int
    world_size: int
    tracking_run: str
    """MLflow run id."""
    parent: FeaturesRef | StudyRef

    @property
    def found(self) -> Mapping[str, Any]:
        """The settings that a study found for it, by their names with dots; none where there was no search."""
        return self.parent.parameters if isinstance(self.parent, StudyRef) else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportRef(Ref):
    """An evaluation and its verdict. Artifacts: ``report`` (HTML), ``metrics`` (JSON)."""

    kind: ClassVar[str] = "report"
    parent_types: ClassVar[tuple[type[Ref], ...]] = (CheckpointRef,)

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
    parent_types: ClassVar[tuple[type[Ref], ...]] = (ReportRef,)

    name: str
    version: str
    """MLflow's."""
    semantic_version: str
    """major.minor.patch: what a caller has to change, what may answer differently, what was only trained again."""
    parent: ReportRef


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionsRef(Ref):
    """What a registered model answered about the rows of a snapshot. Artifact: ``manifest``."""

    kind: ClassVar[str] = "predictions"
    parent_types: ClassVar[tuple[type[Ref], ...]] = (DatasetRef, ValidationRef)

    model: str
    """Name of the registered model."""
    model_version: str
    """MLflow's number of the version that was asked."""
    model_sha256: str
    """Digest of the ReportRef that it was registered for, hence of all that it was made of."""
    num_rows: int
    num_unanswered: int
    """Rows that the model's feature set leaves out, of groups that are too small: their answers are null."""
    parent: DatasetRef | ValidationRef


KINDS: Mapping[str, type[Ref]] = {
    cls.kind: cls
    for cls in (
        DatasetRef,
        ValidationRef,
        FeaturesRef,
        TrialRef,
        StudyRef,
        CheckpointRef,
        ReportRef,
        ModelVersionRef,
        PredictionsRef,
    )
}


def ref_from_wire(wire: object) -> Ref:
    """Read a ref of whatever kind the document names."""
    if not isinstance(wire, Mapping) or wire.get("kind") not in KINDS:
        raise RefError(f"not a ref: {shorten(wire)}; known kinds are {', '.join(KINDS)}")
    return KINDS[wire["kind"]].from_wire(wire)


def ref_of(kinds: Sequence[type[Ref]], wire: object) -> Ref:
    """
    Read a ref of one of several classes.

    :raises RefError: where ``wire`` is none of them
    """
    return _check_kind(wire, kinds).from_wire(wire)


def class_names(kinds: Sequence[type[Ref]]) -> str:
    """For messages: ``FeaturesRef or StudyRef``."""
    return " or ".join(kind.__name__ for kind in kinds)


def _check_kind(wire: object, kinds: Sequence[type[Ref]]) -> type[Ref]:
    if not isinstance(wire, Mapping) or "kind" not in wire:
        raise RefError(f"expected a {class_names(kinds)} document, got {shorten(wire)}")
    for kind in kinds:
        if kind.kind == wire["kind"]:
            return kind
    raise RefError(f"expected a {class_names(kinds)}, got a ref of kind {wire['kind']!r}")


def named_in(manifest: bytes) -> list[Artifact]:
    """
    The objects that a manifest names: blobs and indexes of a snapshot, shards of features.

    :raises ValueError: where it is no manifest
    """
    document = json.loads(manifest)
    if not isinstance(document, Mapping) or not {"partitions", "splits"} & document.keys():
        raise ValueError("it is no manifest: it has neither partitions nor splits")
    return list(_objects_in([document.get("partitions"), document.get("splits")]))


def _objects_in(document: object) -> Iterator[Artifact]:
    if isinstance(document, Mapping):
        if {"key", "sha256", "num_bytes"} <= document.keys():
            yield Artifact(key=document["key"], sha256=document["sha256"], num_bytes=document["num_bytes"])
        document = list(document.values())
    for part in document if isinstance(document, list) else ():
        yield from _objects_in(part)


def canonical_json(document: object) -> bytes:
    """JSON with sorted keys and no spaces: equal documents give equal bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(document: object) -> str:
    """SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(document)).hexdigest()


def shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
