"""
References between steps: one straight line from data to a registered model.

``DatasetRef <- ValidationRef <- FeaturesRef <- [StudyRef] <- CheckpointRef <- ReportRef <- ModelVersionRef``

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

        :raises RefError: where ``wire`` is no ref, one of another kind, or has missing or unknown fields
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
        values["artifacts"] = {name: Artifact(**a) for name, a in wire["artifacts"].items()}
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
    """Exists only where validation passed. Artifacts: ``report``, ``statistics``."""

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
    )
}


def ref_from_wire(wire: object) -> Ref:
    """Read a ref of whatever kind the document names."""
    if not isinstance(wire, Mapping) or wire.get("kind") not in KINDS:
        raise RefError(f"not a ref: {_shorten(wire)}; known kinds are {', '.join(KINDS)}")
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


@dataclass(frozen=True, kw_only=True, slots=True)
class RefDifference:
    """The first field in which a ref is not the one that was committed at its place."""

    kind: str
    """Class of the ref that has the field."""
    field: str
    """With dots for parts: ``metrics.auc``."""
    given: str
    committed: str
    """Both values, shortened, as they are shown to people."""

    def __str__(self) -> str:
        return f"{self.field} of the {self.kind} is {self.given}, and was committed as {self.committed}"


def difference(given: Ref, committed: Ref) -> RefDifference | None:
    """
    Compare a ref that came from outside with the one that the store has at its place, parents included.

    :return: None where they are equal
    """
    if type(given) is not type(committed):
        names = [type(ref).__name__ for ref in (given, committed)]
        return RefDifference(kind=names[0], field="kind", given=names[0], committed=names[1])
    wires = [{name: value for name, value in ref.to_wire().items() if name != "parent"} for ref in (given, committed)]
    if (found := _first_difference(*wires)) is not None:
        name, *values = found
        shown = [_shorten(value) for value in values]
        return RefDifference(kind=type(given).__name__, field=name, given=shown[0], committed=shown[1])
    before, parent = getattr(given, "parent", None), getattr(committed, "parent", None)
    return difference(before, parent) if isinstance(before, Ref) and isinstance(parent, Ref) else None


def distrust(given: Ref, committed: Ref | None, what: str, store: str) -> str | None:
    """
    Say why a ref that came from outside is not believed; None where it is.

    :param committed: what the store has at its place, if anything
    :param what: the ref's role, which begins the sentence: ``the input of evaluate``
    :param store: URI
    """
    key = f"{given.place}/ref.json"
    if committed is None:
        return (
            f"{what} names a {type(given).__name__} at {given.place!r}, but no step committed one there: {store} has "
            f"no {key}. Clear the task that returned it"
        )
    if (found := difference(given, committed)) is None:
        return None
    return (
        f"{what} was changed after its step had returned it: {found} ({key}). Clear the task that returned it, so that "
        "it returns what it committed"
    )


_ABSENT = "absent"


def _first_difference(given: Mapping[str, Any], committed: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    for name in sorted({*given, *committed}):
        values = given.get(name, _ABSENT), committed.get(name, _ABSENT)
        if all(isinstance(value, Mapping) for value in values):
            if (inner := _first_difference(*values)) is not None:
                return f"{name}.{inner[0]}", *inner[1:]
        # By their JSON: 1 and True, or 1 and 1.0, are equal in Python.
        elif canonical_json(values[0]) != canonical_json(values[1]):
            return name, *values
    return None


def _check_kind(wire: object, kinds: Sequence[type[Ref]]) -> type[Ref]:
    if not isinstance(wire, Mapping) or "kind" not in wire:
        raise RefError(f"expected a {class_names(kinds)} document, got {_shorten(wire)}")
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


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
