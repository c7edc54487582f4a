"""Pods that the kubelet evicts one after the other, each for its node's want of memory or disk."""

from __future__ import annotations

from typing import Final

from mlops_provider.launchers.kubernetes.api import Manifest
from mlops_provider.launchers.kubernetes.status import index_of, ran_seconds, was_too_big

LONG_SECONDS: Final = 3600.0
"""A pod that has run for so long had room on its node: it was evicted for what came later, its neighbours perhaps."""


class Evictions:
    """Those of a Job, by the index of the pods."""

    def __init__(self) -> None:
        self._in_a_row: dict[str | None, list[str]] = {}

    def note(self, pod: Manifest, died: str) -> None:
        """
        :param pod: one that is over, however it came to that
        :param died: in words
        """
        if was_too_big(pod):
            before = self._in_a_row.get(index_of(pod), [])
            self._in_a_row[index_of(pod)] = [*before, died] if ran_seconds(pod) < LONG_SECONDS else [died]

    def why(self, most: int) -> str | None:
        """Why a next pod would fare no better, where so many of one index were evicted; None where they were not."""
        evicted = max(self._in_a_row.values(), key=len, default=[])
        if len(evicted) < most:
            return None
        return (
            f"{len(evicted)} pods, one after the other, were evicted for what they take of their nodes (pods.memory, "
            f"pods.scratch, pods.ephemeral_storage); the last: {evicted[-1]}"
        )
