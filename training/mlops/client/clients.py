"""The client, for programs that wait for each answer and for those that do not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx
import tenacity
from httpx_sse import EventSource

from mlops.client import calls
from mlops.client.answers import Curves, Run, Runs, RunSummary
from mlops.client.calls import AnyRun, Call
from mlops.client.following import CUTS, PAUSE_SECONDS, Looks, Position
from mlops.client.notebook import Picture
from mlops.client.session import Session, is_stream, retrying
from mlops.contract.rest import FINISHED, Value

T = TypeVar("T")

Kind = Literal["experiment", "night"]
State = Literal["queued", "running", "success", "failed"]


class Client:
    """
    :param url: root of Airflow's API server, such as ``http://127.0.0.1:8080``
    :param user: of Airflow; None where it lets everybody in, or a token is given
    :param password: of the user
    :param token: of Airflow's API, where somebody else has logged in
    :raises ClientError: of each method, where the server refuses or cannot be reached; its message says what would do
    """

    def __init__(
        self, url: str, user: str | None = None, password: str | None = None, *, token: str | None = None
    ) -> None:
        self._session = Session(url, user, password, token)
        self._http = httpx.Client()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(
        self,
        pipeline: str,
        *,
        settings: Mapping[str, Any] | None = None,
        as_of: str | None = None,
        until: str | None = None,
        seeds: int | None = None,
        sample: float | None = None,
        name: str | None = None,
        idempotency_key: str | None = None,
    ) -> RunSummary:
        """
        Have Airflow try a pipeline out, from snapshot to evaluation; nothing is registered.

        :param pipeline: its name
        :param settings: other values for settings, by their name in the pipeline's file: ``train.learning_rate``
        :param as_of: of the data: the newest data interval that had ended by then, a date or an instant of ISO 8601;
            now, if not given
        :param until: the last step; ``evaluate``, if not given
        :param seeds: train and evaluate with so many seeds
        :param sample: train on a share of the samples, such as 0.1
        :param name: keeps the results apart from those of other names
        :param idempotency_key: your requests of a pipeline with one key are one run; if not given, each call is one
        """
        return self._do(calls.submit(pipeline, settings, as_of, until, seeds, sample, name, idempotency_key))

    def run(self, run: AnyRun) -> Run:
        """Return a run, and what has come out of it so far."""
        return self._do(calls.run(run))

    def runs(
        self,
        pipeline: str | None = None,
        *,
        kind: Kind = "experiment",
        user: str | None = None,
        state: State | None = None,
        most: int = 100,
    ) -> Runs:
        """
        List runs, the newest first.

        :param kind: nights are those of one pipeline
        :param user: who asked for them
        :param most: so many of them
        """
        found, cursor = Runs(), ""
        while len(found) < most:
            page = self._do(calls.runs(pipeline, kind, user, state, cursor))
            found.extend(page.runs)
            if page.next is None:
                break
            cursor = page.next
        return Runs(found[:most])

    def cancel(self, run: AnyRun) -> RunSummary:
        """End a run: its processes and pods end within seconds, and what is committed stays."""
        return self._do(calls.cancel(run))

    def logs(self, run: AnyRun, *, task: str | None = None, try_number: int | None = None, map_index: int = -1) -> str:
        """
        Return what a task has written so far.

        :param task: of a night
        :param try_number: the newest one, if not given
        """
        return self._do(calls.logs(run, task, try_number, map_index))

    def curves(self, run: AnyRun, *, metrics: Sequence[str] = (), points: int | None = None) -> Curves:
        """
        Return the curves of a run's trainings so far.

        :param metrics: their names; all, if none is given
        :param points: at most, of each curve
        """
        return self._do(calls.curves(run, metrics, points))

    def watch(self, run: AnyRun) -> Iterator[list[Value]]:
        """Yield what is new each time that values were logged, those of before first, until the run has ended."""
        position = Position(run)
        while not position.has_ended:
            try:
                with closing(self._do(position.call())) as response:
                    for event in EventSource(response).iter_sse():
                        if values := position.read(event):
                            yield values
            except CUTS as error:
                position.check(error)
                time.sleep(PAUSE_SECONDS)

    def wait(self, run: AnyRun, timeout_seconds: float | None = None) -> Run:
        """
        Wait until a run has ended.

        :raises TimeoutError: where it has not by then; it goes on
        """
        looks = Looks(timeout_seconds)
        while (found := self.run(run)).state not in FINISHED:
            time.sleep(looks.pause(found))
        return found

    def show(self, run: AnyRun, *, metrics: Sequence[str] = ()) -> None:
        """
        Show a run in a notebook: its curves as they grow, until it has ended.

        :param metrics: their names; all, if none is given
        """
        picture = Picture(self.run(run), metrics)
        for values in self.watch(run):
            picture.add(values)
        picture.finish(self.run(run))

    def _do(self, call: Call[T]) -> T:
        exchange = self._session.exchange(call)
        request = next(exchange)
        while True:
            try:
                request = exchange.send(self._answered(request))
            except StopIteration as done:
                answer: T = done.value
                return answer

    def _answered(self, request: httpx.Request) -> httpx.Response:
        try:
            return tenacity.Retrying(**retrying(request))(self._send, request)
        except httpx.TransportError as error:
            raise self._session.unreachable(error) from error

    def _send(self, request: httpx.Request) -> httpx.Response:
        response = self._http.send(request, stream=True)
        if not is_stream(response):
            response.read()
        return response


class AsyncClient:
    """
    :class:`Client`, for programs that do other things meanwhile: its methods are awaited, ``watch`` by ``async for``.

    The parameters are the same.
    """

    def __init__(
        self, url: str, user: str | None = None, password: str | None = None, *, token: str | None = None
    ) -> None:
        self._session = Session(url, user, password, token)
        self._http = httpx.AsyncClient()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def submit(
        self,
        pipeline: str,
        *,
        settings: Mapping[str, Any] | None = None,
        as_of: str | None = None,
        until: str | None = None,
        seeds: int | None = None,
        sample: float | None = None,
        name: str | None = None,
        idempotency_key: str | None = None,
    ) -> RunSummary:
        """See :meth:`Client.submit`."""
        return await self._do(calls.submit(pipeline, settings, as_of, until, seeds, sample, name, idempotency_key))

    async def run(self, run: AnyRun) -> Run:
        """See :meth:`Client.run`."""
        return await self._do(calls.run(run))

    async def runs(
        self,
        pipeline: str | None = None,
        *,
        kind: Kind = "experiment",
        user: str | None = None,
        state: State | None = None,
        most: int = 100,
    ) -> Runs:
        """See :meth:`Client.runs`."""
        found, cursor = Runs(), ""
        while len(found) < most:
            page = await self._do(calls.runs(pipeline, kind, user, state, cursor))
            found.extend(page.runs)
            if page.next is None:
                break
            cursor = page.next
        return Runs(found[:most])

    async def cancel(self, run: AnyRun) -> RunSummary:
        """See :meth:`Client.cancel`."""
        return await self._do(calls.cancel(run))

    async def logs(
        self, run: AnyRun, *, task: str | None = None, try_number: int | None = None, map_index: int = -1
    ) -> str:
        """See :meth:`Client.logs`."""
        return await self._do(calls.logs(run, task, try_number, map_index))

    async def curves(self, run: AnyRun, *, metrics: Sequence[str] = (), points: int | None = None) -> Curves:
        """See :meth:`Client.curves`."""
        return await self._do(calls.curves(run, metrics, points))

    async def watch(self, run: AnyRun) -> AsyncIterator[list[Value]]:
        """See :meth:`Client.watch`."""
        position = Position(run)
        while not position.has_ended:
            try:
                async with aclosing(await self._do(position.call())) as response:
                    async for event in EventSource(response).aiter_sse():
                        if values := position.read(event):
                            yield values
            except CUTS as error:
                position.check(error)
                await asyncio.sleep(PAUSE_SECONDS)

    async def wait(self, run: AnyRun, timeout_seconds: float | None = None) -> Run:
        """See :meth:`Client.wait`."""
        looks = Looks(timeout_seconds)
        while (found := await self.run(run)).state not in FINISHED:
            await asyncio.sleep(looks.pause(found))
        return found

    async def show(self, run: AnyRun, *, metrics: Sequence[str] = ()) -> None:
        """See :meth:`Client.show`."""
        picture = Picture(await self.run(run), metrics)
        async for values in self.watch(run):
            picture.add(values)
        picture.finish(await self.run(run))

    async def _do(self, call: Call[T]) -> T:
        exchange = self._session.exchange(call)
        request = next(exchange)
        while True:
            try:
                request = exchange.send(await self._answered(request))
            except StopIteration as done:
                answer: T = done.value
                return answer

    async def _answered(self, request: httpx.Request) -> httpx.Response:
        try:
            return await tenacity.AsyncRetrying(**retrying(request))(self._send, request)
        except httpx.TransportError as error:
            raise self._session.unreachable(error) from error

    async def _send(self, request: httpx.Request) -> httpx.Response:
        response = await self._http.send(request, stream=True)
        if not is_stream(response):
            await response.aread()
        return response
