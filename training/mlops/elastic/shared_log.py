"""A log in torch's store that many processes append to: each entry has its number, and all read the same ones."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

GAP_SECONDS = 2.0
"""After which an entry whose writer took its number and ended is passed over."""
_BATCH = 1024
_LENGTH, _NOTHING = "length", "null"


class SharedLog:
    """
    :param store: of its own, a ``PrefixStore``

    All methods raise torch's ``DistError`` where the store cannot be reached.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gap: tuple[int, float] | None = None
        """The number that has no entry yet, and since when."""

    def append(self, entry: Any) -> int:
        """
        :param entry: what JSON can hold
        :return: its number
        """
        body = json.dumps(entry)
        while True:
            number: int = self._store.add(_LENGTH, 1) - 1
            if self._store.compare_set(str(number), "", body) == body.encode():
                return number

    def read(self, start: int) -> list[Any]:
        """
        What is there from a number on, as far as it is without gaps. An entry that was passed over is None.

        :param start: number of the first entry wanted
        """
        entries: list[Any] = []
        keys = [str(number) for number in range(start, self._store.add(_LENGTH, 0))]
        for first in range(0, len(keys), _BATCH):
            batch = keys[first : first + _BATCH]
            if not self._store.check(batch):
                batch = self._without_gaps(batch)
            # multi_get would wait for a key that is missing.
            entries += map(json.loads, self._store.multi_get(batch) if batch else [])
            if len(entries) < first + _BATCH:
                break
        return entries

    def _without_gaps(self, keys: list[str]) -> list[str]:
        """Keep the keys before the first that is missing; the writer of one that is missing for long has ended."""
        for at, key in enumerate(keys):
            if self._store.check([key]):
                continue
            if self._gap is None or self._gap[0] != int(key):
                self._gap = int(key), time.monotonic()
            if time.monotonic() < self._gap[1] + GAP_SECONDS:
                return keys[:at]
            self._store.compare_set(key, "", _NOTHING)
        return keys
