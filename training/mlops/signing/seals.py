"""
Seals of an audit trail: a signature of each entry, made by whoever answers for it.

The process that makes a transition writes its entry and holds no key. The operator that ran it, or the person at the
command line, signs the entry's digest at :func:`seal_key`. An entry holds the digest of the one before, so that none
can be changed, put between others, or taken away without a seal that does not hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from mlops.signing.envelope import SignedRecord

ENTRY: Final = "audit_entry"
"""Artifact of a ref, and detail of a failure: the entry that the step wrote."""

ANCHOR: Final = "mlops_audit."
"""Begins the name of the Airflow variable that holds number and digest of the newest signed entry of a model."""

TrailFolder = Literal["audit", "applied", "seals"]
_ENDINGS: Final[Mapping[TrailFolder, str]] = {"audit": r"\.json", "applied": "", "seals": r"\.json"}
"""End of the names of a trail's objects, by their folder below that of the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seal(SignedRecord):
    """Who answers for one entry."""

    predicate_type: ClassVar = "urn:mlops:audit-entry:v1"
    people_sign: ClassVar = True

    model: str
    number: int
    sha256: str
    """Digest of the entry's bytes."""
    signed_for: str
    """The task instance, or the person and their reason."""
    at: str
    """ISO 8601, UTC."""

    def subject(self) -> tuple[str, str]:
        return entry_key(self.model, self.number), self.sha256


def entry_key(model: str, number: int) -> str:
    """Where an entry of the audit trail lies in the store."""
    return f"models/{model}/audit/{number:012}.json"


def entry_of_key(key: str) -> tuple[str, int]:
    """The model and the number: the other way round."""
    _, model, _, name = key.split("/")
    return model, int(name.removesuffix(".json"))


def entry_numbers(model: str, keys: Iterable[str], folder: TrailFolder = "audit") -> list[int]:
    """
    Return the numbers of the entries that some keys name, sorted. A file of another name, or in a folder below, is
    somebody's copy, and names none.

    :param keys: of the store
    :param folder: of the trail: with the entries, with the markers of those that were applied, or with the seals
    """
    place = f"models/{model}/{folder}"
    name = re.compile(rf"{re.escape(place)}/(\d{{12}}){_ENDINGS[folder]}", re.ASCII)
    return sorted(int(match[1]) for match in map(name.fullmatch, keys) if match)


def seal_key(model: str, number: int) -> str:
    """Where the seal of an entry lies in the store."""
    return f"models/{model}/seals/{number:012}.json"
