"""The differences between the environments of two trainings, and those of them that change bits. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

ABSENT: Final = "not there"
CODE: Final = "library code"
DECIDING_LOCK: Final = "training/requirements.txt"
"""Name of the lock file whose packages features and training are computed with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentDifference:
    """One difference between two environments, in the words of :data:`_KINDS`."""

    kind: str
    name: str
    then: str
    now: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.name} {self.then} then, {self.now} now"


# In the order in which each is a likely reason for other bits.
_KINDS: Final = {
    CODE: ("library",),
    "library": ("torch", "python", "packages"),
    "lock file": ("locks",),
    "hardware class": ("hardware",),
    "world size": ("world_size", "layout"),
    "threads": ("num_threads",),
    "precision": ("float32_matmul",),
}


def compare_environments(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[EnvironmentDifference]:
    """Compare two environments in what both record; the likeliest reason for other bits first."""
    found: list[EnvironmentDifference] = []
    for kind, names in _KINDS.items():
        for name in names:
            if name in then and name in now:
                found += _compare(kind, name, then[name], now[name])
    return found


def deciding(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part that :func:`compare_environments` compares, without the threads, which a training keeps."""
    names = {name for kind, names in _KINDS.items() if kind != "threads" for name in names}
    return {name: environment[name] for name in sorted(names & environment.keys())}


def that_count(differences: Sequence[EnvironmentDifference]) -> list[EnvironmentDifference]:
    """
    Leave out what only one environment has: a package that is not used, a GPU's library. Bits come from what both have.
    """
    return [difference for difference in differences if ABSENT not in (difference.then, difference.now)]


def that_must_agree(differences: Sequence[EnvironmentDifference]) -> list[EnvironmentDifference]:
    """Return the differences that an installation decides, and that should be fixed before anything is reproduced."""
    return [
        difference
        for difference in differences
        if difference.kind == "library" or (difference.kind == "lock file" and difference.name == DECIDING_LOCK)
    ]


def why_not_here(world_size: int, num_gpus: int) -> str | None:
    """
    Return the reason why a training cannot run on this machine; None if it can.

    :param num_gpus: GPUs of the machine; without any, the processes share its processors
    """
    if not 0 < num_gpus < world_size:
        return None
    return (
        f"to train in {world_size} processes takes as many GPUs, and this machine has {num_gpus}: run this on one that "
        f"has them, or say --world-size {num_gpus} to see what differs. With CUDA_VISIBLE_DEVICES set to nothing the "
        "processes share this machine's processors, as where a model was trained without GPUs"
    )


def _compare(kind: str, name: str, then: Any, now: Any) -> list[EnvironmentDifference]:
    if then == now:
        return []
    if not isinstance(then, Mapping):
        return [EnvironmentDifference(kind=kind, name=name, then=_short(then), now=_short(now))]
    return [
        EnvironmentDifference(kind=kind, name=part, then=_short(then.get(part)), now=_short(now.get(part)))
        for part in sorted(then.keys() | now.keys())
        if then.get(part) != now.get(part)
    ]


def _short(value: Any) -> str:
    text = ABSENT if value is None else str(value)
    return text[:12] if len(text) == 64 else text  # a digest
