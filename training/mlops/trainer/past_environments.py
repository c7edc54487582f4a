"""The environments that the processes of a training ran in, noted below its place in the store."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from mlops.contract.environments import compare_environments, deciding, that_count
from mlops.contract.refs import canonical_json
from mlops.store import Store

_MOST_SHOWN: Final = 5

logger = logging.getLogger(__name__)


def note_environment(store: Store, place: str, environment: Mapping[str, Any]) -> None:
    """
    Note the environment of a process that begins a training or goes on with it, unless it is noted. Where another one
    is, it is said: bits may differ from those of a training that was not interrupted.

    :param place: of the training
    """
    note = {"at": time.time(), "environment": dict(environment)}
    store.put_new(_key(place, deciding(environment)), canonical_json(note))
    for other in other_environments(store, place, environment):
        logger.warning(
            "a part of this training may have been done elsewhere, which may show in the last bits of the model, and "
            "is kept with it: %s",
            "; ".join(other["differences"][:_MOST_SHOWN]),
        )


def other_environments(store: Store, place: str, environment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """
    :return: those that other processes of the training had, the oldest first: ``at``, Unix time of the first such
        process, and ``differences`` in words, from it to this environment
    """
    own = deciding(environment)
    own_key = _key(place, own)
    found: list[dict[str, Any]] = []
    for key in store.list(_folder(place)):
        if key == own_key:
            continue
        try:
            noted = json.loads(store.get(key))
            differences = that_count(compare_environments(deciding(noted["environment"]), own))
            if differences:
                found.append({"at": float(noted["at"]), "differences": [str(difference) for difference in differences]})
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
            # A training is worth more than this note.
            logger.warning("%s is damaged, and passed over: %s", key, error)
    return sorted(found, key=lambda other: other["at"])


def _folder(place: str) -> str:
    return f"{place}/environments"


def _key(place: str, own: Mapping[str, Any]) -> str:
    """:param own: what decides of an environment"""
    return f"{_folder(place)}/{hashlib.sha256(canonical_json(own)).hexdigest()[:16]}.json"
