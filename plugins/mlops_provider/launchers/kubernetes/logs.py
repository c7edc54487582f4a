"""A container's log, each line once, over whatever cuts the connection."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from mlops_provider.launchers.kubernetes.api import Api, ApiError, UnreachableError
from mlops_provider.launchers.kubernetes.manifests import CONTAINER

REOPEN_SECONDS: Final = 1.0
# Fractions have trailing zeros or not.
_INSTANT: Final = re.compile(rb"(\S+?)(?:\.(\d+))?(?:Z|[+-]\d\d:\d\d)")


class PodLog:
    """
    :param prefix: of each line that is handed on
    :param since: RFC 3339, where another follower has been; None: from the start
    """

    def __init__(self, api: Api, pod: str, prefix: str, since: str | None, on_line: Callable[[str], None]) -> None:
        self._api, self._pod, self._prefix, self._since, self._on_line = api, pod, prefix, since, on_line
        self._last: tuple[bytes, bytes] = (b"", b"")
        self._num_at_last = 0
        self.newest: datetime | None = None
        """When the last line was written that was handed on."""
        self.is_broken = False
        """Whether there may be older lines that were not."""

    async def follow(self, over: asyncio.Event) -> None:
        """
        Until the container's log ends.

        :param over: set when the container has ended: a stream may end before
        """
        while not await self._read(follow=True) or not over.is_set():
            if over.is_set():
                await asyncio.sleep(REOPEN_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(REOPEN_SECONDS):
                    await over.wait()

    async def finish(self) -> None:
        """What is left of the log of a container that has ended, where the stream does not give it."""
        while not await self._read(follow=False):
            await asyncio.sleep(REOPEN_SECONDS)

    async def _read(self, *, follow: bool) -> bool:
        """:return: whether the log, or the pod, has come to an end"""
        # A stream may give lines of two channels a little out of order: only what was read before is passed over.
        before, skip = self._last, self._num_at_last
        try:
            async for line in self._api.log(self._pod, CONTAINER, self._since, follow=follow):
                stamp, _, text = line.partition(b" ")
                if (found := _INSTANT.fullmatch(stamp)) is None:
                    continue
                self.is_broken = False
                instant = found[1], (found[2] or b"").ljust(9, b"0")
                # The API counts whole seconds: what was read already comes again.
                if instant < before:
                    continue
                if instant == before and skip:
                    skip -= 1
                    continue
                if instant >= self._last:
                    self._num_at_last = self._num_at_last + 1 if instant == self._last else 1
                    self._last = instant
                    self._since = stamp.decode()
                    self.newest = datetime.fromisoformat(self._since).astimezone(UTC)
                self._on_line(self._prefix + text.decode(errors="replace"))
        except ApiError as error:
            if error.status == 404:
                self.is_broken = False
                return True
            self.is_broken = error.status != 400  # which is: not started yet
            return False
        except UnreachableError as error:
            # Nothing for minutes is what a quiet program looks like.
            self.is_broken = not isinstance(error.__cause__, TimeoutError)
            return False
        self.is_broken = False
        return True
