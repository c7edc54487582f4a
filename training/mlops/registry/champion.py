"""The model now in production, with the way back to its data and code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from mlops.contract.refs import CheckpointRef, ModelVersionRef, ReportRef


@dataclass(frozen=True, kw_only=True, slots=True)
class Champion:
    """A version in the registry, and the report that it was registered for."""

    version: str
    report: ReportRef

    @classmethod
    def of(cls, ref: ModelVersionRef) -> Self:
        return cls(version=ref.version, report=ref.parent)

    @property
    def checkpoint(self) -> CheckpointRef:
        return self.report.parent
