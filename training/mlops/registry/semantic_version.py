"""The major.minor.patch number of a model version: what a caller has to change, and what may answer differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

FIRST: Final = "1.0.0"
VERSION_TAG: Final = "mlops.semantic_version"


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """Digests of a model's inputs and outputs, and of all else but the numbers that it has learnt."""

    signature: str
    """Digest of the columns that the model takes and gives, with their types."""
    raw_schema: str
    """Digest of all columns of the snapshot, also those that only the recipe reads."""
    architecture: str
    """Digest of the model's description and the recipe's code, features included."""

    @classmethod
    def of_tags(cls, tags: Mapping[str, str]) -> Self | None:
        """Read the contract from tags; None for a version that was registered by other means."""
        found = {field: tags.get(tag) for field, tag in _TAGS.items()}
        return cls(**found) if all(found.values()) else None  # type: ignore[arg-type]

    def tags(self) -> dict[str, str]:
        return {tag: getattr(self, field) for field, tag in _TAGS.items()}


_TAGS: Final = {
    "signature": "mlops.signature_digest",
    "raw_schema": "mlops.schema_hash",
    "architecture": "mlops.architecture_digest",
}


def semantic_version(new: Contract, earlier: Iterator[Mapping[str, str]]) -> str:
    """
    Return the next version number: major if signature or raw schema differ from the version before, minor if code,
    model or hyperparameters differ, patch if it was only trained again.

    :param earlier: tags of the versions before, newest first
    """
    for tags in earlier:
        if (old := Contract.of_tags(tags)) is None:
            continue
        # One without a number is being registered at this moment: it gets the number that it is given here.
        before = tags.get(VERSION_TAG) or semantic_version(old, earlier)
        return _after(before, old, new)
    return FIRST


def _after(before: str, old: Contract, new: Contract) -> str:
    major, minor, patch = map(int, before.split("."))
    if (old.signature, old.raw_schema) != (new.signature, new.raw_schema):
        return f"{major + 1}.0.0"
    if old.architecture != new.architecture:
        return f"{major}.{minor + 1}.0"
    return f"{major}.{minor}.{patch + 1}"
