"""One reader for all who watch the same thing, and what they are told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from fastapi.sse import ServerSentEvent
from pydantic import BaseModel

T = TypeVar("T")

STREAM_SECONDS: Final = 25.0
"""After which a stream ends, and who watches opens it again: rights are asked for anew, and a server can stop."""
RETRY_MILLISECONDS: Final = 500
PAUSE_SECONDS: Final = 1.0
"""Between two readings; one that takes long is followed by a pause as long."""
FORGOTTEN_SECONDS: Final = 60.0
"""After which what nobody has looked at is read anew."""


def event_of(kind: str, document: BaseModel, event_id: str | None = None) -> ServerSentEvent:
    """
    Return an event of a stream that tells a document.

    In ASCII: FastAPI begins a line of its own at all that ends one for Python, such as U+2028, within a text, too.
    """
    return ServerSentEvent(event=kind, raw_data=document.model_dump_json(ensure_ascii=True), id=event_id)


class Shared(Generic[T]):
    """
    What several look at again and again, and is read once for all of them: only when somebody looks, and not more often
    than each second. An error is told to whoever looked; the next one who looks reads again.

    :param read: reads it; cancelled where who looked has gone
    """

    def __init__(self, read: Callable[[], Awaitable[T]], pause: float = PAUSE_SECONDS) -> None:
        self._read, self._pause = read, pause
        self._turn = asyncio.Lock()
        self._found: T | None = None
        self._next = 0.0
        self.looked_at = time.monotonic()

    async def look(self) -> T:
        self.looked_at = time.monotonic()
        async with self._turn:
            begun = time.monotonic()
            if self._found is None or begun >= self._next:
                self._found = await self._read()
                ended = time.monotonic()
                self._next = ended + max(self._pause, ended - begun)
            return self._found


class SharedByName(Generic[T]):
    """Such things by their names, each for as long as anybody looks at it."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Shared[T]] = {}

    def get(self, name: Hashable, read: Callable[[], Awaitable[T]]) -> Shared[T]:
        """
        :param read: of a new one
        """
        long_ago = time.monotonic() - FORGOTTEN_SECONDS
        for each in [each for each, shared in self._known.items() if shared.looked_at < long_ago]:
            del self._known[each]
        if name not in self._known:
            self._known[name] = Shared(read)
        return self._known[name]
