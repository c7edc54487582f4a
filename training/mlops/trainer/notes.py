"""Notes what happens to a training, below its place in the store."""

from __future__ import annotations

import logging
import os
import time
import uuid

from mlops.contract.step import LINEAGE_VARIABLE
from mlops.contract.training_events import TrainingEvent, event_key
from mlops.store import Store
from mlops.store_errors import StoreError

logger = logging.getLogger(__name__)


def note(store: Store, key: str, event: TrainingEvent) -> None:
    """Note an event, unless there is one of that key; where the store fails, the training goes on without."""
    try:
        store.put_new(key, event.dump())
    except StoreError as error:
        logger.warning("%r could not be noted: %s", event.said, error)


def note_resumed(store: Store, place: str, said: str) -> None:
    """
    Note that a training goes on from a checkpoint, or from what another process has kept in memory.

    :param place: of the training
    """
    gang = os.environ.get(LINEAGE_VARIABLE) or uuid.uuid4().hex
    key = event_key(place, gang, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")), "resumed")
    note(store, key, TrainingEvent(kind="resumed", said=said, node="", at=time.time()))
