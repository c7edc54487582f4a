"""
The fence between process groups that meet on one place: each takes a number, and only the highest one works on.

After a network partition, or where a stopped machine goes on, two process groups may train at one place. Each new one
takes the next generation, by a conditional put, before it reads or writes a checkpoint; it looks for a higher one
before each marker and each removal, and ends where there is one. Between the look and the act another may still come;
what makes that harmless is said in ARCHITECTURE.md, "Two process groups on one place".
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from mlops.contract.checkpoint_listing import generation_of, root_of
from mlops.contract.step import LINEAGE_VARIABLE, StepError
from mlops.store import Store
from mlops.trainer.checkpoint.listing import list_folders

_VERSION: Final = 1
_KEPT: Final = 16
"""Generation objects that stay: whoever is slower than so many new process groups finds its own one gone."""
_RENEW_SECONDS: Final = 3600.0
"""An object is written again after this time, so that a bucket's expiry by age does not remove it."""


class LostGenerationError(StepError):
    """
    Another process group has taken over. Not retryable: tried again in place, this one would take over in turn, and the
    two would end each other for ever.
    """

    retryable = False


class GenerationGoneError(StepError):
    """The object of this process group was removed, and nobody has taken over: tried again, it takes a new one."""


class Generation:
    """
    Rank 0's. Made by :meth:`take`; :meth:`check` is called before each marker and each removal.
    """

    def __init__(self, store: Store, place: str, document: Mapping[str, Any], inherited: frozenset[str]) -> None:
        self._store, self._place, self._document = store, place, document
        self.number: int = document["generation"]
        self.writer: str = document["writer"]
        """Names this process group; no other has the same."""
        self.inherited = inherited
        """Checkpoints' folders that were there when it was taken. Of others' it may remove no more than these."""
        self._renewed_at = time.monotonic()

    @classmethod
    def take(cls, store: Store, place: str, lineage: str | None = None) -> Generation:
        """
        :param lineage: see :data:`~mlops.contract.step.LINEAGE_VARIABLE`; None: as the environment says
        :raises LostGenerationError: where an earlier process group of this lineage has lost its own
        """
        writer = uuid.uuid4().hex
        lineage = lineage or os.environ.get(LINEAGE_VARIABLE) or writer
        while True:
            numbers = _numbers(store, place)
            newest = _newest_readable(store, place, numbers)
            overtaken: list[str] = newest["overtaken"] if newest else []
            if newest and lineage in overtaken:
                raise _lost(place, newest, None)
            if newest and newest["lineage"] != lineage:
                overtaken = [*overtaken, newest["lineage"]]
            # Where all objects have expired, folders still tell of their generations.
            number = 1 + max([*numbers[-1:], *map(generation_of, list_folders(store, place))], default=0)
            document = {
                "v": _VERSION,
                "generation": number,
                "writer": writer,
                "lineage": lineage,
                "overtaken": overtaken,
                "host": socket.gethostname(),
                "taken_at": time.time(),
            }
            if store.put_new(_key(place, number), json.dumps(document).encode()):
                break
        store.delete([_key(place, old) for old in numbers[:-_KEPT]])
        # Listed after it was taken: whatever an earlier process group removes from now on, it had announced before.
        return cls(store, place, document, frozenset(list_folders(store, place)))

    def check(self) -> None:
        """
        :raises LostGenerationError: where another process group has taken over
        :raises GenerationGoneError: where this one's object is not there any more
        """
        numbers = _numbers(self._store, self._place)
        if numbers and (numbers[-1] > self.number or self.number not in numbers):
            raise _lost(self._place, _newest_readable(self._store, self._place, numbers), self.number)
        if not numbers:
            raise GenerationGoneError(
                f"{_key(self._place, self.number)} was removed while the training ran: leave the folder "
                f"{root_of(self._place)} alone, and expire only what is older than a day there"
            )
        if time.monotonic() > self._renewed_at + _RENEW_SECONDS:
            self._store.put(_key(self._place, self.number), json.dumps(self._document).encode())
            self._renewed_at = time.monotonic()


def _lost(place: str, newest: Mapping[str, Any] | None, mine: int | None) -> LostGenerationError:
    who = "another process group"
    if newest is not None:
        when = datetime.fromtimestamp(newest["taken_at"], UTC).isoformat(timespec="seconds")
        who = f"a process group on {newest['host']}, generation {newest['generation']}, has at {when}"
    generation = "an earlier one" if mine is None else f"generation {mine}"
    return LostGenerationError(
        f"this training goes on elsewhere: {who} taken over {place}. This one ({generation}) ends, and leaves "
        "the checkpoints as they are; there is nothing to do, unless both were meant to run"
    )


def _key(place: str, number: int) -> str:
    return f"{root_of(place)}/generations/{number:08d}.json"


def _numbers(store: Store, place: str) -> list[int]:
    """Return the numbers of the generations whose objects are there, in order."""
    names = [key.rpartition("/")[2] for key in store.list(f"{root_of(place)}/generations")]
    return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal())


def _newest_readable(store: Store, place: str, numbers: Sequence[int]) -> Mapping[str, Any] | None:
    """The document of the highest number that can be read; a damaged one still counts by its name."""
    for number in reversed(numbers):
        try:
            document: Mapping[str, Any] = json.loads(store.get(_key(place, number)))
            if {"generation", "lineage", "overtaken", "host", "taken_at"} <= document.keys():
                return document
        except (FileNotFoundError, ValueError, AttributeError):
            continue
    return None
