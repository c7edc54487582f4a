"""The check of an audit trail: each entry, its signature, its order, and that none was taken away."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from mlops.registry.audit import AuditTrail, Entry
from mlops.signing.decision import Decision
from mlops.signing.envelope import EnvelopeError
from mlops.signing.seals import Seal, entry_key, seal_key
from mlops.store import Store

_READERS: Final = 16
_DECISION: Final = re.compile(r"models/[^/]+/decisions/\d+-[0-9a-f]{32}-\d{1,9}\.json", re.ASCII)
"""See :func:`mlops.signing.decision.decision_key`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong with an audit trail."""

    number: int
    """Number of the entry; 0 if the finding is about no single one."""
    kind: str
    """Kind of the finding: ``changed``, ``missing``, ``unsigned``, ``forged`` or ``moved``."""
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchor:
    """The newest entry, as recorded in a place that writers of the store cannot write to."""

    number: int
    sha256: str


@dataclass(frozen=True, slots=True)
class _Stored:
    """Everything that the store holds of one number."""

    data: bytes | None
    marker: str | None
    seal: bytes | None

    @property
    def digest(self) -> str | None:
        return None if self.data is None else hashlib.sha256(self.data).hexdigest()

    def entry(self) -> Entry | None:
        try:
            return None if self.data is None else Entry.load(self.data)
        except ValueError:
            return None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrailCheck:
    """
    A check of one model's trail.

    :param trusted: public keys that entries and decisions may be signed with
    :param anchor: None if nothing is known
    """

    store: Store
    model: str
    trusted: Sequence[str]
    anchor: Anchor | None = None

    def findings(self) -> tuple[int, list[Finding]]:
        """Check the trail; return how many entries there are, or should be, and what is wrong, in their order."""
        stored = self._stored()
        found: list[Finding] = []
        before = 0
        for number, one in stored.items():
            if number > before + 1:
                gap = f"entry {before + 1}" if number == before + 2 else f"entries {before + 1} to {number - 1}"
                found.append(Finding(number=before + 1, kind="missing", text=f"{gap}, with all traces, was removed"))
            found += self._about(number, one, stored.get(number + 1), last=max(stored))
            before = number
        return before, [*found, *self._decisions(stored)]

    def _stored(self) -> dict[int, _Stored]:
        trail = AuditTrail(self.store, self.model)
        numbers = trail.numbers("audit", "applied", "seals")
        ordered = sorted(numbers | ({self.anchor.number} if self.anchor else set()))

        def read(number: int) -> _Stored:
            marker = self._read(trail.marker_key(number))
            return _Stored(
                self._read(entry_key(self.model, number)),
                None if marker is None else marker.decode(errors="replace"),
                self._read(seal_key(self.model, number)),
            )

        with ThreadPoolExecutor(_READERS) as readers:
            return dict(zip(ordered, readers.map(read, ordered), strict=True))

    def _read(self, key: str) -> bytes | None:
        try:
            return self.store.get(key)
        except FileNotFoundError:
            return None

    def _about(self, number: int, stored: _Stored, after: _Stored | None, *, last: int) -> Iterator[Finding]:
        key = entry_key(self.model, number)

        def finding(kind: str, text: str) -> Finding:
            return Finding(number=number, kind=kind, text=text)

        seal: Seal | None = None
        if stored.seal is not None:
            try:
                seal = Seal.unsealed(stored.seal, self.trusted)
            except EnvelopeError as error:
                yield finding("forged", f"its signature {seal_key(self.model, number)} does not hold: {error}")
            else:
                if (seal.model, seal.number) != (self.model, number):
                    yield finding("forged", f"its signature is that of entry {seal.number} of {seal.model}")
                    seal = None
        elif stored.data is not None:
            yield finding("unsigned", "it is not signed: whoever made it has not answered for it")
        expected = self._expected(number, stored, seal, after)
        if stored.data is None:
            known = next(iter(expected.values()), None)
            where = "was cut off" if number == last else "was removed"
            said = f" ({', '.join(expected)} knows it as {known[:12]}...)" if known else ""
            yield finding("missing", f"{key} {where}{said}")
            return
        for witness, digest in expected.items():
            if digest != stored.digest:
                yield finding("changed", f"{key} is not what {witness} knows: SHA-256 {digest[:12]}...")
        entry = stored.entry()
        if entry is None:
            yield finding("changed", f"{key} is no entry of an audit trail")
        elif (entry.model, entry.number) != (self.model, number):
            yield finding("changed", f"{key} holds entry {entry.number} of {entry.model}")
        next_entry = after.entry() if after is not None else None
        # It is signed when it was carried out. An adopted state puts an end to one that was not.
        if stored.marker is None and seal is not None and (next_entry is None or next_entry.action != "adopt"):
            yield finding("missing", "the mark that it was carried out was removed")

    def _expected(self, number: int, stored: _Stored, seal: Seal | None, after: _Stored | None) -> dict[str, str]:
        """Return the digests that an entry should have, by their source."""
        expected: dict[str, str] = {}
        if self.anchor is not None and self.anchor.number == number:
            expected["the anchor"] = self.anchor.sha256
        if seal is not None:
            expected["its signature"] = seal.sha256
        next_entry = after.entry() if after is not None else None
        if next_entry is not None and next_entry.previous is not None:
            expected["the entry after it"] = next_entry.previous
        if stored.marker is not None:
            expected["its mark"] = stored.marker
        return expected

    def _decisions(self, stored: Mapping[int, _Stored]) -> Iterator[Finding]:
        """Iterate over what is wrong with the signed answers that entries name."""
        seen: set[tuple[str, str]] = set()
        for number, found in stored.items():
            entry = found.entry()
            for version, live in entry.stages.live.items() if entry is not None else ():
                for key in live.decisions:
                    if (key, version) in seen:
                        continue
                    seen.add((key, version))
                    if (problem := self._decision_problem(key, version)) is not None:
                        yield Finding(number=number, kind=problem[0], text=f"the decision {key} {problem[1]}")

    def _decision_problem(self, key: str, version: str) -> tuple[str, str] | None:
        # Anything else may be no key at all, and then the store fails for all models.
        if not (_DECISION.fullmatch(key) and key.startswith(f"models/{self.model}/decisions/")):
            return "forged", f"is no key of a decision about {self.model}"
        data = self._read(key)
        if data is None:
            return "missing", "was removed"
        try:
            question = Decision.unsealed(data, self.trusted).question
        except EnvelopeError as error:
            return "forged", f"does not hold: {error}"
        if (question.model, question.version) != (self.model, version):
            return "forged", f"is about version {question.version} of {question.model}, not {version} of {self.model}"
        return None
