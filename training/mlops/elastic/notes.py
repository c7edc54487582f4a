"""What an agent notes of a training, in the background: it waits for no store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mlops.contract.training_events import EventKind, TrainingEvent, event_key
from mlops.store import Store
from mlops.trainer.notes import note

_LAST_SECONDS = 5.0
"""For what is still being written when the process ends."""


class Notes:
    """
    :param store: opens the store, where there is something to note
    :param place: of the training
    :param node: name of this node
    """

    def __init__(self, store: Callable[[], Store], place: str, node: str) -> None:
        self._store, self._place, self._node = store, place, node
        self._writing: list[threading.Thread] = []

    def add(self, gang: str, round_: int, kind: EventKind, said: str, *, of: str = "") -> None:
        """
        Note an event.

        :param gang: see :func:`~mlops.contract.training_events.event_key`, as for ``round_``
        :param of: the node or rank that it happens to, where it does to each for itself
        """
        event = TrainingEvent(kind=kind, said=said, node=self._node, at=time.time())
        what = f"{kind}-{of.replace('/', '-')}" if of else kind
        key = event_key(self._place, gang, round_, what)
        thread = threading.Thread(target=lambda: note(self._store(), key, event), name="note", daemon=True)
        thread.start()
        self._writing.append(thread)

    def finish(self) -> None:
        """Wait until all is written, but not for long."""
        deadline = time.monotonic() + _LAST_SECONDS
        for thread in self._writing:
            thread.join(max(0.0, deadline - time.monotonic()))
