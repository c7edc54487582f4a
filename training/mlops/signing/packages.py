"""
The signature of a model version's package: which files were registered, whatever MLflow holds by now.

The step that registers names the digest of the package's files; the operator that ran it signs it at
:func:`package_key`, and as the version's tag :data:`SIGNATURE_TAG`, so that a server needs MLflow only. Whoever loads
the version compares the files with it before any of their code is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from mlops.signing.envelope import SignedRecord

PACKAGE: Final = "package"
"""Artifact of a ModelVersionRef: the list of names and digests of the package's files, as canonical JSON."""
SIGNATURE_TAG: Final = "mlops.package_signature"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageSeal(SignedRecord):
    """Which files are a version."""

    predicate_type: ClassVar = "urn:mlops:model-package:v1"

    model: str
    version: str
    sha256: str
    """SHA-256 of the list of the files: see :data:`PACKAGE`."""
    files: str
    """Where that list lies in the store."""
    signed_for: str
    """The task instance."""

    def subject(self) -> tuple[str, str]:
        return f"{self.model}/{self.version}", self.sha256


def package_key(model: str, version: str) -> str:
    """Where the signature lies in the store."""
    return f"models/{model}/packages/{version}.json"
