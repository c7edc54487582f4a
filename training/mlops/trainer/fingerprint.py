"""
The steps of a training, so that another one can be followed beside it to where they part.

Each step adds the norm of its gradient to a chain of digests. Every parameter and every sample of all ranks has a part
in that norm, and it is known on each rank anyway. Of the chain some hundreds of links are kept.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

MAX_LINKS: Final = 512


@dataclass(kw_only=True, slots=True)
class StepFingerprint:
    """Part of the training's state. The same on every rank."""

    head: str = ""
    """Digest of all steps so far."""
    stride: int = 1
    """Links are kept of its multiples; doubled where there are too many of them."""
    links: dict[int, str] = field(default_factory=dict)
    """By optimizer steps done."""

    def add(self, step: int, norm: float) -> None:
        """
        :param step: optimizer steps done, with this one
        :param norm: of the whole gradient, before it was clipped
        """
        link = hashlib.blake2b(self.head.encode() + struct.pack("<d", norm), digest_size=8)
        self.head = link.hexdigest()
        if step % self.stride:
            return
        self.links[step] = self.head
        if len(self.links) > MAX_LINKS:
            self.stride *= 2
            self.links = {step: link for step, link in self.links.items() if step % self.stride == 0}

    def document(self) -> dict[str, Any]:
        """JSON."""
        return {"head": self.head, "stride": self.stride, "links": {str(step): self.links[step] for step in self.links}}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        links = {int(step): link for step, link in document["links"].items()}
        return cls(head=document["head"], stride=document["stride"], links=links)

    def parts_from(self, other: StepFingerprint) -> tuple[int, int] | None:
        """
        Where two trainings part.

        :return: a step up to which they are equal (0: none), and the first known one where they are not; None where
            they are equal in all that is known of both
        """
        equal = 0
        for step in sorted(self.links.keys() & other.links.keys()):
            if self.links[step] != other.links[step]:
                return equal, step
            equal = step
        return None
