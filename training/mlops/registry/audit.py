"""
The audit trail of a model: every transition between stages, append-only, in the object store.

``models/<name>/audit/<number>.json`` is written by a conditional put: entry N exists once, which puts all transitions
in one order, whoever makes them. An entry is written before the registry's aliases are moved;
``models/<name>/applied/<number>`` says that they were. Each entry holds the digest of the one before, and the marker
its own, so that no entry can be changed or taken away unseen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from mlops.contract.refs import Artifact, shorten
from mlops.contract.stage_moves import Stages
from mlops.contract.step import BadDataError
from mlops.signing.envelope import EnvelopeError
from mlops.signing.seals import ENTRY, Seal, TrailFolder, entry_key, entry_numbers, seal_key
from mlops.store import Store


class AuditError(BadDataError):
    """An entry of the audit trail is missing, or is not what was written."""


class UnsignedEntryError(AuditError):
    """Nobody has signed an entry of the audit trail yet: the task that wrote it may be about to."""

    retryable = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One transition, and the stages of the whole model after it."""

    number: int
    at: str
    """Time of the entry, ISO 8601, UTC, by the clock of the machine that wrote it; the order is given by ``number``."""
    model: str
    version: str
    action: str
    """
    Name of the action: ``register``, ``approve``, ``canary``, ``promote``, ``archive``, ``rollback``, ``retire`` or
    ``adopt``.
    """
    from_stage: str | None
    """Stage before the transition; None for a new version."""
    to_stage: str
    former_champion: str | None
    """Version that was in production before; None if there was none."""
    who: str
    """Author of the transition: the Airflow task, and the user if one started its run; or a user of the machine."""
    why: str
    report: str | None
    """Key of the gate's report in the store."""
    approver: str | None
    previous: str | None
    """SHA-256 of the bytes of the entry before."""
    stages: Stages
    writer: str = ""
    """
    Name of the writer: of two processes that would write equal entries at once, only one takes the entry for its own.
    Empty in entries of releases before there were writers.
    """
    digest: str = field(default="", compare=False)
    """SHA-256 of the entry's own bytes, which do not contain it."""

    @property
    def artifact(self) -> Artifact:
        """The entry as an object of the store."""
        data = self.dump()
        return Artifact(
            key=entry_key(self.model, self.number), sha256=hashlib.sha256(data).hexdigest(), num_bytes=len(data)
        )

    def dump(self) -> bytes:
        wire = {spec.name: getattr(self, spec.name) for spec in fields(self) if spec.name != "digest"}
        if not self.writer:
            del wire["writer"]
        return json.dumps({**wire, "stages": self.stages.to_wire()}, indent=1, sort_keys=True).encode()

    @classmethod
    def load(cls, data: bytes) -> Self:
        """
        Read what :meth:`dump` wrote.

        :raises ValueError: if it is none, whatever it is
        """
        try:
            wire: Mapping[str, Any] = json.loads(data)
            _check_kinds(wire)
            values = {**wire, "stages": Stages.from_wire(wire["stages"])}
            return cls(**values, digest=hashlib.sha256(data).hexdigest())
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Flaw:
    """An object of the trail that is missing, or not what was written."""

    key: str
    missing: bool
    expected: str | None
    """SHA-256 of the bytes that were written, if the entry after it or its marker says it."""
    found: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class AuditTrail:
    """
    The entries of one model. A transition calls, in order: ``last``, ``append``, ``mark_applied``.

    :param model: the model's name in the registry
    """

    store: Store
    model: str

    def last(self) -> Entry | None:
        """
        Return the newest entry; None if there is none.

        :raises AuditError: where it was taken away or changed
        """
        numbers = self.numbers("audit", "applied")
        return self._as_applied(self.read(max(numbers))) if numbers else None

    def last_readable(self) -> Entry | None:
        """Return the newest entry that can be read, whatever was changed in it or before it; None if there is none."""
        for number in sorted(self.numbers("audit"), reverse=True):
            try:
                return self.read(number)
            except AuditError:
                continue
        return None

    def last_applied(self, trusted: Sequence[str] = ()) -> Entry | None:
        """
        Return the newest entry by which aliases and tags were set.

        :param trusted: public keys. If there are some, an entry that none of them signed is passed over.
        """
        for number in sorted(self.numbers("applied"), reverse=True):
            entry = self._as_applied(self.read(number))
            if not trusted or self._is_signed(entry, trusted):
                return entry
        return None

    def read(self, number: int) -> Entry:
        """
        Read an entry.

        :raises AuditError: if it is missing, cannot be read, or is another one
        """
        key = self._key(number)
        try:
            entry = Entry.load(self.store.get(key))
        except FileNotFoundError:
            raise AuditError(f"{key} is missing from {self.store.uri}: restore it from a backup") from None
        except ValueError as error:
            raise AuditError(f"{key} in {self.store.uri} is damaged ({error}): restore it from a backup") from error
        # A copy has its signature and its mark under its own number: decided on, it would never be the newest.
        if (entry.model, entry.number) != (self.model, number):
            raise AuditError(
                f"{key} in {self.store.uri} holds entry {entry.number} of {entry.model}: no transition wrote it there. "
                "Delete it; where another entry was there before, restore that one from a backup"
            )
        return entry

    def append(self, entry: Entry) -> bool:
        """Write an entry; False if another process has written one of that number."""
        return self.store.put_new(self._key(entry.number), entry.dump())

    def has(self, number: int) -> bool:
        return self.store.exists(self._key(number))

    def mark_applied(self, entry: Entry) -> None:
        """Record that aliases and tags are as the entry says."""
        self.store.put_new(self.marker_key(entry.number), hashlib.sha256(entry.dump()).hexdigest().encode())

    def is_applied(self, number: int) -> bool:
        return self.store.exists(self.marker_key(number))

    def newest_first(self) -> Iterator[Entry]:
        """
        Iterate over the entries, each checked against the one after it and against its own marker.

        :raises AuditError: at the first that is missing or was changed
        """
        entry = self.last()
        while entry is not None:
            yield entry
            before = self._as_applied(self.read(entry.number - 1)) if entry.number > 1 else None
            if before is not None:
                self._check(before, entry.previous)
            entry = before

    def check_signed(self, entry: Entry, trusted: Sequence[str]) -> None:
        """
        Check that a trusted key has signed an entry.

        :param trusted: public keys
        :raises UnsignedEntryError: if nobody has signed it
        :raises AuditError: if its signature does not hold, or none of these keys made it
        """
        try:
            seal = Seal.unsealed(self.store.get(seal_key(self.model, entry.number)), trusted)
        except FileNotFoundError:
            raise UnsignedEntryError(self._not_signed(entry, "nobody has signed it")) from None
        except EnvelopeError as error:
            raise AuditError(self._not_signed(entry, f"its signature does not hold: {error}")) from error
        if (seal.model, seal.number, seal.sha256) != (self.model, entry.number, entry.digest):
            other = f"entry {seal.number} of {seal.model}, with SHA-256 {seal.sha256[:12]}..."
            raise AuditError(self._not_signed(entry, f"its signature is that of {other}"))

    def _is_signed(self, entry: Entry, trusted: Sequence[str]) -> bool:
        try:
            self.check_signed(entry, trusted)
        except AuditError:
            return False
        return True

    def _not_signed(self, entry: Entry, why: str) -> str:
        what = f"{entry.action} of version {entry.version} by {entry.who}"
        done = "carried out" if self.is_applied(entry.number) else "not carried out"
        return (
            f"{self._key(entry.number)} in {self.store.uri} ({what}) was written and {done}, and {why}. Clear the task "
            f"that made it; where it is gone, look at the entry and sign it: mlops audit sign {self.model} "
            f"{entry.number} --why ...; where nobody made it, record the aliases as they are: mlops models adopt "
            f"{self.model} --why ..."
        )

    def flaws(self) -> Iterator[Flaw]:
        """Iterate over everything that is missing or was changed, where :meth:`newest_first` ends at the first."""
        known = self.numbers("audit", "applied")
        after: Entry | None = None
        # Of a gap, which a number far away makes long, the last one stands for all.
        for number in sorted(known | {number - 1 for number in known if number > 1}, reverse=True):
            key, marker = self._key(number), self._read_marker(number)
            expected = after.previous if after and after.number == number + 1 else marker
            try:
                entry = self.read(number)
            except AuditError as error:
                after = None
                yield Flaw(key=key, missing=not self.has(number), expected=expected, found=None, detail=str(error))
                continue
            if expected is not None and entry.digest != expected:
                yield Flaw(key=key, missing=False, expected=expected, found=entry.digest, detail="")
            elif marker is not None and entry.digest != marker:
                detail = f"it holds {marker[:64]!r}, and the entry has the SHA-256 {entry.digest}"
                yield Flaw(key=self.marker_key(number), missing=False, expected=None, found=None, detail=detail)
            after = entry

    def removal_of(self, version: str) -> Entry | None:
        """Return the newest entry that ended the life of a version that was live."""
        after: Entry | None = None
        for entry in self.newest_first():
            if version in entry.stages.live:
                return after
            after = entry
        return None

    def _as_applied(self, entry: Entry) -> Entry:
        if self.is_applied(entry.number):
            self._check(entry, self.store.get(self.marker_key(entry.number)).decode())
        return entry

    def _read_marker(self, number: int) -> str | None:
        try:
            return self.store.get(self.marker_key(number)).decode(errors="replace")
        except FileNotFoundError:
            return None

    def _check(self, entry: Entry, expected: str | None) -> None:
        if expected is not None and entry.digest != expected:
            raise AuditError(
                f"{self._key(entry.number)} in {self.store.uri} was changed after it was written: its SHA-256 is "
                f"{entry.digest[:12]}..., and was {expected[:12]}...; restore it from a backup"
            )

    def numbers(self, *folders: TrailFolder) -> set[int]:
        """Return the numbers of what lies in these folders of the trail."""
        found: set[int] = set()
        for folder in folders:
            keys = self.store.list(f"models/{self.model}/{folder}")
            found.update(entry_numbers(self.model, keys, folder))
        return found

    def written_by(self, who: str, action: str) -> dict[str, Artifact]:
        """Return the newest entry of one author and action, as an artifact to be signed; empty if there is none."""
        for entry in self.newest_first():
            if (entry.who, entry.action) == (who, action):
                return {ENTRY: entry.artifact}
        return {}

    def _key(self, number: int) -> str:
        return entry_key(self.model, number)

    def marker_key(self, number: int) -> str:
        return f"models/{self.model}/applied/{number:012}"


def _check_kinds(wire: Mapping[str, Any]) -> None:
    """
    Check that the values of an entry are of their kinds: who compares or prints them later would fail there.

    :raises TypeError: naming the field
    """
    optional = {"from_stage", "former_champion", "report", "approver", "previous"}
    live, former = wire["stages"]["live"], wire["stages"]["former"]
    texts = {name: value for name, value in wire.items() if name not in ("number", "stages")}
    texts |= {f"stages.former.{place}": version for place, version in enumerate(former)}
    for version, values in live.items():
        optional |= {f"stages.live.{version}.{name}" for name in ("report", "approver")}
        decisions = enumerate(values.get("decisions", ()))
        texts |= {f"stages.live.{version}.{name}": value for name, value in values.items() if name != "decisions"}
        texts |= {f"stages.live.{version}.decisions.{place}": key for place, key in decisions}
        int(version)  # versions are ordered by their numbers
    for name, value in texts.items():
        if not (isinstance(value, str) or (value is None and name in optional)):
            raise TypeError(f"{name} is {shorten(value)}, not text")
    if type(wire["number"]) is not int:
        raise TypeError(f"number is {shorten(wire['number'])}, not a number")
