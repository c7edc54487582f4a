"""The cluster's state: objects, their versions, and the changes that watches and controllers follow."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from cluster import errors
from cluster.objects import RESOURCES, Object, Resource, copied, name_of, namespace_of, timestamp, uid_of


@dataclass(frozen=True)
class Change:
    """One step in the history."""

    version: int
    kind: str
    """ADDED, MODIFIED or DELETED."""
    plural: str
    old: Object | None
    new: Object
    """As it is now; of a deleted object, as it was last."""


class Store:
    """Objects in memory. Every method is one transaction: nothing else runs meanwhile."""

    def __init__(self, history: int) -> None:
        self.version = 1
        self._objects: dict[str, dict[tuple[str, str], Object]] = {plural: {} for plural in RESOURCES}
        self._history: deque[Change] = deque(maxlen=history)
        self._listeners: list[Callable[[Change], None]] = []

    def find(self, plural: str, namespace: str, name: str) -> Object | None:
        """The object, if there is one."""
        return self._objects[plural].get((namespace, name))

    def get(self, plural: str, namespace: str, name: str) -> Object:
        """
        The object.

        :raises ApiError: there is none
        """
        found = self.find(plural, namespace, name)
        if found is None:
            raise errors.not_found(RESOURCES[plural], name)
        return found

    def all(self, plural: str, namespace: str = "") -> list[Object]:
        """All objects, or those of a namespace, by name."""
        found = self._objects[plural]
        return [found[key] for key in sorted(found) if not namespace or key[0] == namespace]

    def current(self, plural: str, value: Object) -> Object | None:
        """This very object as it is now: None where another has its name."""
        found = self.find(plural, namespace_of(value), name_of(value))
        return found if found is not None and uid_of(found) == uid_of(value) else None

    def create(self, plural: str, value: Object) -> Object:
        """
        Add an object: uid, time of creation and version are given here.

        :raises ApiError: there is one of this name
        """
        resource, key = RESOURCES[plural], (namespace_of(value), name_of(value))
        if key in self._objects[plural]:
            raise errors.already_exists(resource, key[1])
        new = _headed(resource, value)
        new["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
        new["metadata"].setdefault("generation", 1)
        return self._record("ADDED", plural, None, new)

    def replace(self, plural: str, value: Object) -> Object:
        """Store a changed object; one that is as before keeps its version, and nobody hears of it."""
        old = self.get(plural, namespace_of(value), name_of(value))
        value["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if value == old:
            return old
        return self._record("MODIFIED", plural, old, _headed(RESOURCES[plural], value))

    def modify(self, plural: str, value: Object, change: Callable[[Object], None]) -> Object | None:
        """Apply a change to the object as it is now; None where it is gone."""
        found = self.current(plural, value)
        if found is None:
            return None
        new = copied(found)
        change(new)
        return self.replace(plural, new)

    def remove(self, plural: str, value: Object) -> Object:
        """Take an object out, whatever hangs on it."""
        last = self.get(plural, namespace_of(value), name_of(value))
        return self._record("DELETED", plural, last, copied(last))

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Call on every change, inside the transaction: the listener only takes note."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[Change], None]) -> None:
        """Call no more."""
        self._listeners.remove(listener)

    def since(self, version: int) -> list[Change]:
        """
        The changes after a version.

        :raises ApiError: some of them are no longer kept
        """
        oldest = self._history[0].version if len(self._history) == self._history.maxlen else 0
        if version < oldest - 1:
            raise errors.gone(version, oldest)
        return [change for change in self._history if change.version > version]

    def _record(self, kind: str, plural: str, old: Object | None, new: Object) -> Object:
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        key = (namespace_of(new), name_of(new))
        if kind == "DELETED":
            del self._objects[plural][key]
        else:
            self._objects[plural][key] = new
        change = Change(self.version, kind, plural, old, new)
        self._history.append(change)
        for listener in list(self._listeners):
            listener(change)
        return new


class Inbox:
    """The changes of some resources, for a controller to take one by one."""

    def __init__(self, store: Store, *plurals: str) -> None:
        self._queue: asyncio.Queue[Change] = asyncio.Queue()
        self._plurals = plurals
        store.listen(self._take)

    async def next(self) -> list[Change]:
        """Wait for a change; it and all that are there with it."""
        changes = [await self._queue.get()]
        while not self._queue.empty():
            changes.append(self._queue.get_nowait())
        return changes

    def _take(self, change: Change) -> None:
        if change.plural in self._plurals:
            self._queue.put_nowait(change)


def _headed(resource: Resource, value: Object) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind} | value
