"""Watches: the changes of a resource, as they come, until the time is up."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from cluster.errors import ApiError
from cluster.objects import Object, Resource
from cluster.store import Change, Store

_BOOKMARK_SECONDS = 60.0


@dataclass(frozen=True)
class Watch:
    """What is watched, and how."""

    resource: Resource
    namespace: str
    selected: Callable[[Object], bool]
    version: int | None
    """Changes after it; None for all that is there, and then its changes."""
    seconds: float | None
    bookmarks: bool


async def events(store: Store, watch: Watch, closing: asyncio.Event) -> AsyncGenerator[bytes, None]:
    """The lines of the answer."""
    queue: asyncio.Queue[Change] = asyncio.Queue()
    # Listened to before the first look, so that nothing falls between; nothing is awaited until then.
    store.listen(queue.put_nowait)
    try:
        loop = asyncio.get_running_loop()
        end = loop.time() + (watch.seconds or random.uniform(1800, 3600))
        last = watch.version or 0
        if watch.version is None:
            present = [each for each in store.all(watch.resource.plural, watch.namespace) if watch.selected(each)]
            first = [_line("ADDED", each) for each in present]
            last = store.version
        else:
            try:
                first = [line for change in store.since(watch.version) if (line := _told(change, watch))]
            except ApiError as error:
                yield _line("ERROR", error.status())
                return
            last = max(last, store.version)
        for line in first:
            yield line
        told = loop.time()
        closed = asyncio.ensure_future(closing.wait())
        try:
            while (left := end - loop.time()) > 0 and not closed.done():
                wait = min(left, told + _BOOKMARK_SECONDS - loop.time()) if watch.bookmarks else left
                getting = asyncio.ensure_future(queue.get())
                try:
                    await asyncio.wait({getting, closed}, timeout=max(0.0, wait), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    getting.cancel()  # no effect where there is a change
                if getting.done():
                    change = getting.result()
                    if change.version > last:
                        last = change.version
                        if line := _told(change, watch):
                            yield line
                    continue
                if watch.bookmarks:
                    told = loop.time()
                    yield _bookmark(watch.resource, last)
        finally:
            closed.cancel()
    finally:
        store.unlisten(queue.put_nowait)


def _told(change: Change, watch: Watch) -> bytes | None:
    """A change as this watch sees it: an object can come into its selection and leave it."""
    if change.plural != watch.resource.plural:
        return None
    if watch.namespace and change.new["metadata"].get("namespace") != watch.namespace:
        return None
    before = change.old is not None and watch.selected(change.old)
    after = change.kind != "DELETED" and watch.selected(change.new)
    if not before and not after:
        return None
    kind = "MODIFIED" if before and after else "ADDED" if after else "DELETED"
    return _line(kind, change.new)


def _bookmark(resource: Resource, version: int) -> bytes:
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    return _line("BOOKMARK", {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata})


def _line(kind: str, value: Object) -> bytes:
    return json.dumps({"type": kind, "object": value}).encode() + b"\n"
