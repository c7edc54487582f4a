"""The client, for programs that do other things meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import tenacity
from httpx_sse import EventSource

from mlops.client import calls, following, model_calls
from mlops.client.answers import (
    Checkpoints,
    Curves,
    Datasets,
    Events,
    Models,
    ModelVersion,
    ModelVersions,
    Nights,
    Progress,
    Run,
    Runs,
    RunSummary,
    Snapshot,
    SnapshotDifference,
    Snapshots,
    StageAnswer,
    StartedRun,
    Study,
    Tonight,
    Trials,
    Verdict,
    VersionDifference,
)
from mlops.client.calls import AnyCheckpoint, AnyRun, AnySnapshot, Call
from mlops.client.following import CUTS, Looks, Position, is_stream
from mlops.client.notebook import Picture
from mlops.client.session import Exchange, Session, State
from mlops.contract.rest import FINISHED, RunKind, Value
from mlops.contract.stages import CHAMPION, PRODUCTION

T = TypeVar("T")


class AsyncClient:
    """
    :class:`Client`, for programs that do other things meanwhile: its methods are awaited, ``watch`` by ``async for``.
    It belongs to one event loop.

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
        as_of: str | date | None = None,
        dataset: AnySnapshot | None = None,
        until: str | None = None,
        seeds: int | None = None,
        sample: float | None = None,
        name: str | None = None,
        priority: str | None = None,
        spec: Mapping[str, Any] | None = None,
        recipes: Sequence[str | Path] = (),
        idempotency_key: str | None = None,
    ) -> RunSummary:
        """See :meth:`Client.submit`."""
        asked = {"until": until, "seeds": seeds, "sample": sample, "name": name, "priority": priority}
        called = calls.submit(pipeline, settings, spec, recipes, as_of, dataset, idempotency_key, **asked)
        return await self._do(called)

    async def search(
        self,
        pipeline: str,
        space: Mapping[str, Mapping[str, Any]],
        *,
        metric: str | None = None,
        trials: int | None = None,
        parallel: int | None = None,
        sampler: str | None = None,
        pruner: str | None = None,
        settings: Mapping[str, Any] | None = None,
        as_of: str | date | None = None,
        dataset: AnySnapshot | None = None,
        name: str | None = None,
        priority: str | None = None,
        idempotency_key: str | None = None,
    ) -> RunSummary:
        """See :meth:`Client.search`."""
        asked = {"metric": metric, "trials": trials, "parallel": parallel, "sampler": sampler, "pruner": pruner}
        asked |= {"name": name, "priority": priority}
        return await self._do(calls.search(pipeline, space, settings, as_of, dataset, idempotency_key, **asked))

    async def study(self, run: AnyRun) -> Study:
        """See :meth:`Client.study`."""
        return await self._do(calls.study(run))

    async def change_budget(
        self, run: AnyRun, *, trials: int | None = None, hours: float | None = None, gpu_hours: float | None = None
    ) -> Study:
        """See :meth:`Client.change_budget`."""
        return await self._do(calls.change_budget(run, trials=trials, hours=hours, gpu_hours=gpu_hours))

    async def stop_search(self, run: AnyRun) -> Study:
        """See :meth:`Client.stop_search`."""
        return await self._do(calls.stop_search(run))

    async def trials(self, run: AnyRun) -> Trials:
        """See :meth:`Client.trials`."""
        return await self._do(calls.trials(run))

    async def run(self, run: AnyRun) -> Run:
        """See :meth:`Client.run`."""
        return await self._do(calls.run(run))

    async def runs(
        self,
        pipeline: str | None = None,
        *,
        kind: RunKind = "experiment",
        user: str | None = None,
        state: State | None = None,
        most: int = 100,
    ) -> Runs:
        """See :meth:`Client.runs`."""
        listing = self._session.listing(lambda cursor: calls.runs(pipeline, kind, user, state, cursor), most)
        return Runs(await self._run(listing))

    async def cancel(self, run: AnyRun) -> RunSummary:
        """See :meth:`Client.cancel`."""
        return await self._do(calls.cancel(run))

    async def logs(
        self, run: AnyRun, *, task: str | None = None, try_number: int | None = None, map_index: int = -1
    ) -> str:
        """See :meth:`Client.logs`."""
        return await self._do(calls.logs(run, task, try_number, map_index))

    async def curves(self, run: AnyRun, *, metrics: Sequence[str] | str = (), points: int | None = None) -> Curves:
        """See :meth:`Client.curves`."""
        return await self._do(calls.curves(run, metrics, points))

    async def watch(self, run: AnyRun) -> AsyncIterator[list[Value]]:
        """See :meth:`Client.watch`."""
        async with aclosing(self._news(run)) as news:
            async for values in news:
                if values:
                    yield values

    async def _news(self, run: AnyRun) -> AsyncGenerator[list[Value], None]:
        position = Position(run)
        while not position.has_ended:
            pause = following.REOPEN_SECONDS
            try:
                async with aclosing(await self._do(position.call())) as response:
                    yield []
                    async for event in EventSource(response).aiter_sse():
                        if values := position.read(event):
                            yield values
                position.heard()
            except CUTS as error:
                position.check(error)
                pause = following.PAUSE_SECONDS
            yield position.rest()
            if not position.has_ended:
                await asyncio.sleep(pause)

    async def wait(self, run: AnyRun, timeout_seconds: float | None = None) -> Run:
        """See :meth:`Client.wait`."""
        looks = Looks(run, self._session.has_answered, timeout_seconds)
        while True:
            try:
                if (found := await self._do(looks.call())).state in FINISHED:
                    return found
                pause = looks.pause()
            except CUTS as error:
                pause = looks.pause(error)
            await asyncio.sleep(pause)

    async def events(self, run: AnyRun) -> Events:
        return await self._do(calls.events(run))

    async def checkpoints(self, run: AnyRun) -> Checkpoints:
        return await self._do(calls.checkpoints(run))

    async def restore(
        self,
        checkpoint: AnyCheckpoint,
        *,
        settings: Mapping[str, Any] | None = None,
        name: str | None = None,
        idempotency_key: str | None = None,
    ) -> RunSummary:
        return await self._do(calls.restore(checkpoint, settings, name, idempotency_key))

    async def datasets(self) -> Datasets:
        """See :meth:`Client.datasets`."""
        return await self._do(calls.datasets())

    async def snapshots(self, dataset: str, *, most: int = 100) -> Snapshots:
        """See :meth:`Client.snapshots`."""
        listing = self._session.listing(lambda cursor: calls.snapshots(dataset, cursor), most)
        return Snapshots(await self._run(listing))

    async def snapshot(self, dataset: str, version: AnySnapshot) -> Snapshot:
        """See :meth:`Client.snapshot`."""
        return await self._do(calls.snapshot(dataset, version))

    async def compare(self, dataset: str, before: AnySnapshot, after: AnySnapshot) -> SnapshotDifference:
        """See :meth:`Client.compare`."""
        return await self._do(calls.compare(dataset, before, after))

    async def tonight(self) -> Tonight:
        """See :meth:`Client.tonight`."""
        return await self._do(model_calls.tonight())

    async def nights(self, pipeline: str, *, most: int = 30) -> Nights:
        """See :meth:`Client.nights`."""
        return await self._do(model_calls.nights(pipeline, most))

    async def progress(self, run: AnyRun) -> Progress:
        """See :meth:`Client.progress`."""
        return await self._do(model_calls.progress(run))

    async def verdict(self, run: AnyRun) -> Verdict:
        """See :meth:`Client.verdict`."""
        return await self._do(model_calls.verdict(run))

    async def models(self) -> Models:
        """See :meth:`Client.models`."""
        return await self._do(model_calls.models())

    async def model_versions(self, model: str, *, most: int = 100) -> ModelVersions:
        """See :meth:`Client.model_versions`."""
        listing = self._session.listing(lambda cursor: model_calls.model_versions(model, cursor), most)
        return ModelVersions(await self._run(listing))

    async def model_version(self, model: str, version: str | int = CHAMPION) -> ModelVersion:
        """See :meth:`Client.model_version`."""
        return await self._do(model_calls.model_version(model, version))

    async def compare_versions(self, model: str, before: str | int, after: str | int = CHAMPION) -> VersionDifference:
        """See :meth:`Client.compare_versions`."""
        return await self._do(model_calls.compare_versions(model, before, after))

    async def register(self, model: str, run: AnyRun, *, training: str | None = None) -> StartedRun:
        """See :meth:`Client.register`."""
        return await self._do(model_calls.register(model, run, training))

    async def register_artifact(
        self,
        model: str,
        uri: str,
        *,
        sha256: str | None = None,
        version: str | None = None,
        metrics: Mapping[str, float] | None = None,
        pipeline: str | None = None,
        as_of: str | date | None = None,
        idempotency_key: str | None = None,
    ) -> StartedRun:
        """See :meth:`Client.register_artifact`."""
        said = {"sha256": sha256, "version": version, "metrics": metrics, "pipeline": pipeline}
        return await self._do(model_calls.register_artifact(model, uri, as_of, idempotency_key, **said))

    async def ask_stage(self, model: str, version: str | int, stage: str = PRODUCTION) -> StageAnswer:
        """See :meth:`Client.ask_stage`."""
        return await self._do(model_calls.ask_stage(model, version, stage))

    async def rollback(
        self, model: str, why: str, *, champion: str | int | None = None, idempotency_key: str | None = None
    ) -> StartedRun:
        """See :meth:`Client.rollback`."""
        return await self._do(model_calls.rollback(model, why, champion, idempotency_key))

    async def show(self, run: AnyRun, *, metrics: Sequence[str] | str = ()) -> None:
        """See :meth:`Client.show`."""
        picture = Picture(await self.run(run), metrics)
        async with aclosing(self._news(run)) as news:
            async for values in news:
                picture.add(values, None if values else await self._seen(run))
        picture.finish(await self.wait(run))

    async def _seen(self, run: AnyRun) -> Run | None:
        """A run, where it can be seen; what cannot be is told by its stream."""
        try:
            return await self.run(run)
        except CUTS:
            return None

    async def _do(self, call: Call[T]) -> T:
        return await self._run(self._session.exchange(call))

    async def _run(self, exchange: Exchange[T]) -> T:
        response: httpx.Response | None = None
        while True:
            try:
                request = next(exchange) if response is None else exchange.send(response)
            except StopIteration as done:
                answer: T = done.value
                return answer
            response = await self._answered(request)

    async def _answered(self, request: httpx.Request) -> httpx.Response:
        try:
            return await tenacity.AsyncRetrying(**self._session.retrying(request))(self._send, request)
        except httpx.RequestError as error:
            raise self._session.unreachable(error) from error

    async def _send(self, request: httpx.Request) -> httpx.Response:
        response = await self._http.send(request, stream=True)
        self._session.has_answered = True
        if not is_stream(response):
            await response.aread()
        return response
