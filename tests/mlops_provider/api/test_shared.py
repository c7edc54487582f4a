from __future__ import annotations

import asyncio

import pytest

from mlops_provider.api.shared import Shared, SharedByName


class Source:
    def __init__(self, fails_at: int | None = None) -> None:
        self.readings, self.fails_at = 0, fails_at

    async def read(self) -> int:
        self.readings += 1
        number = self.readings
        await asyncio.sleep(0.001)
        if number == self.fails_at:
            raise ConnectionError("away")
        return number


def test_fifty_who_look_cost_one_reader() -> None:
    """Broken: a run that a team looks at would load MLflow and Airflow fifty times."""
    source = Source()

    async def look_ten_times(shared: Shared[int]) -> int:
        for _ in range(10):
            found = await shared.look()
            await asyncio.sleep(0.01)
        return found

    async def look() -> list[int]:
        shared = Shared(source.read, pause=3600)
        return await asyncio.gather(*(look_ten_times(shared) for _ in range(50)))

    assert asyncio.run(look()) == [1] * 50
    assert source.readings == 1


def test_an_error_is_told_to_who_looked_and_the_next_one_reads_again() -> None:
    """Broken: after an outage of a second nobody would see anything until the server is started again."""
    source = Source(fails_at=1)

    async def look() -> list[object]:
        shared = Shared(source.read, pause=3600)
        return await asyncio.gather(*(shared.look() for _ in range(3)), return_exceptions=True)

    first, *others = asyncio.run(look())
    assert isinstance(first, ConnectionError)
    assert others == [2, 2]


def test_who_leaves_while_it_is_read_leaves_nothing_locked() -> None:
    source = Source()

    async def look() -> int:
        shared = Shared(source.read)
        leaving = asyncio.create_task(shared.look())
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        return await asyncio.wait_for(shared.look(), 5)

    assert asyncio.run(look()) == 2


def test_what_nobody_looks_at_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: the points of each run that anybody has ever watched would stay in memory."""
    source, known = Source(), SharedByName[int]()
    first = known.get("a", source.read)
    assert known.get("a", source.read) is first
    monkeypatch.setattr("mlops_provider.api.shared.FORGOTTEN_SECONDS", -1)
    assert known.get("a", source.read) is not first
