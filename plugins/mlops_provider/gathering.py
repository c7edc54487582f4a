"""Many requests to another service, some at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
ItemT = TypeVar("ItemT")


async def gather(work: Callable[[ItemT], Awaitable[T]], items: Iterable[ItemT], at_once: int = 16) -> list[T]:
    """
    Do something with each item.

    :param at_once: so many of them
    :return: the results, in the order of the items
    :raises Exception: the first error; what has not ended is ended then
    """
    turns = asyncio.Semaphore(at_once)

    async def one(item: ItemT) -> T:
        async with turns:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as several:
            tasks = [several.create_task(one(item)) for item in items]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
