"""``/runs/{id}/metrics``: the curves of a run's trainings, and the same live."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import httpx
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from mlops.contract.rest import FINISHED, MOST_POINTS, Curves, Value
from mlops_provider.api.airflow import Airflow, AirflowDep, as_asker
from mlops_provider.api.deployments import Mlflow, of_name
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.api.runs import find_run, result_of
from mlops_provider.api.shared import RETRY_MILLISECONDS, STREAM_SECONDS, SharedByName, event_of
from mlops_provider.curves import CurveName, Point, Tracked, Tracking
from mlops_provider.experiments.names import place_of, tried_out
from mlops_provider.mlflow_rest import MlflowError, RefusedError

router = APIRouter(tags=["metrics"], responses=DOCUMENTED)

_LOOK_SECONDS: Final = 1.0
_STATE_SECONDS: Final = 3.0
"""Between two looks of one who watches whether the run has ended."""
_MOST_WATCHED: Final = 200_000
"""Values that are kept of a run while somebody watches it."""
_MOST_BETWEEN_IDS: Final = 200
_MOST_POSITIONS: Final = 450
"""Curves that an id can tell of: proxies refuse headers beyond 8 kB."""
_POSITION: Final = struct.Struct("<Iq")

Told = dict[int, int]
"""The step up to which each curve was told, by the curve's CRC-32."""
_shared: Final[SharedByName[list[Point]]] = SharedByName()


RunDep = Annotated[Mapping[str, Any], Depends(find_run)]


async def _mlflow(run: RunDep) -> Mlflow:
    return await of_name(tried_out(run["dag_id"]) or run["dag_id"], Mlflow.of_steps)


MlflowDep = Annotated[Mlflow, Depends(_mlflow)]


def _told(last_event_id: Annotated[str | None, Header()] = None) -> Told:
    """:raises Problem: where it is none of ours"""
    try:
        return dict(_POSITION.iter_unpack(base64.urlsafe_b64decode(last_event_id or "")))
    except (ValueError, struct.error):
        raise Problem(422, f"Last-Event-ID {last_event_id!r:.50} is none of this stream: leave it out") from None


@router.get("/runs/{run}/metrics")
async def metrics(
    run: RunDep,
    mlflow: MlflowDep,
    airflow: AirflowDep,
    metric: Annotated[list[str] | None, Query(description="Names; all if none is given")] = None,
    points: Annotated[int, Query(ge=1, le=MOST_POINTS, description="At most, of each curve")] = MOST_POINTS,
) -> Curves:
    """The curves of a run's trainings so far."""
    found = await _all_points(run, mlflow, airflow, metric or (), points)
    return Curves.of(map(_value, found))


@router.get("/runs/{run}/metrics/stream", response_class=EventSourceResponse)
async def stream(
    run: RunDep, mlflow: MlflowDep, told: Annotated[Told, Depends(_told)], request: Request
) -> AsyncIterator[ServerSentEvent]:
    """
    Each value as it comes (event `value`), until the run has ended (event `end`, with its state: close the stream). It
    ends after some seconds anyway; who opens it again with `Last-Event-ID`, as browsers do, goes on where it was.
    Event `problem` says why nothing more comes, and `away` why nothing comes now: open it again later.
    """
    run_id = f"{run['dag_id']}@{run['dag_run_id']}"
    begun = checked = time.monotonic()
    shared = _shared.get(run_id, _reader(run, mlflow))
    seen = 0
    yield ServerSentEvent(retry=RETRY_MILLISECONDS)
    try:
        while (now := time.monotonic()) < begun + STREAM_SECONDS:
            if now > checked + _STATE_SECONDS:
                async with as_asker(request) as airflow:
                    run, checked = await find_run(run_id, airflow), now
            if run["state"] in FINISHED:
                async with as_asker(request) as airflow:
                    rest = await _all_points(run, mlflow, airflow, (), MOST_POINTS)
                for event in _events(rest, told):
                    yield event
                yield ServerSentEvent(event="end", data={"state": run["state"]})
                return
            # The list grows while this one waits to tell: others watch the same.
            new = (await shared.look())[seen:]
            seen += len(new)
            for event in _events(new, told):
                yield event
            await asyncio.sleep(_LOOK_SECONDS)
    except (Problem, MlflowError) as error:
        may_pass = error.status >= 500 if isinstance(error, Problem) else not isinstance(error, RefusedError)
        # Whoever opens it again is told so, or logs in anew.
        is_login = isinstance(error, Problem) and error.status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
        if not is_login:
            yield ServerSentEvent(event="away" if may_pass else "problem", data={"detail": str(error)})


def _events(points: Sequence[Point], told: Told) -> Iterator[ServerSentEvent]:
    """:param told: grows by what is told"""
    new = [point for point in points if point.step > told.get(_crc(point.curve), -1)]
    new.sort(key=lambda point: (point.unix_milliseconds, point.step, point.curve))
    for number, point in enumerate(new, 1):
        curve = _crc(point.curve)
        told[curve] = max(point.step, told.get(curve, -1))
        # Who is cut off between two ids gets some again.
        has_id = number == len(new) or not number % _MOST_BETWEEN_IDS
        yield event_of("value", _value(point), _event_id(told) if has_id else None)


def _reader(run: Mapping[str, Any], mlflow: Mlflow) -> Callable[[], Awaitable[list[Point]]]:
    """Return what reads the points of a run that goes on, those of before included."""
    known: dict[CurveName, int] = {}
    points: list[Point] = []

    async def read() -> list[Point]:
        async with Tracking.open(*mlflow) as tracking:
            new = await tracking.points(await own_trainings(run, tracking), known)
        for point in new:
            known[point.curve] = max(point.step, known.get(point.curve, -1))
        points.extend(new)
        if len(points) > _MOST_WATCHED:
            raise Problem(422, f"more than {_MOST_WATCHED} values are too many to watch: see GET .../metrics")
        return points

    return read


async def _all_points(
    run: Mapping[str, Any],
    mlflow: Mlflow,
    airflow: Airflow,
    metrics: Sequence[str],
    most: int,
) -> list[Point]:
    """Read the curves of a run."""
    async with Tracking.open(*mlflow) as tracking:
        found = await trainings_of(run, tracking, airflow)
        known = {metric for each in found for metric in each.latest}
        if known and (unknown := sorted({*metrics} - known)):
            raise Problem(422, f"metric {', '.join(unknown)}: not logged so far; there are {', '.join(sorted(known))}")
        return await tracking.points(found, {}, metrics, most)


async def trainings_of(run: Mapping[str, Any], tracking: Tracking, airflow: Airflow) -> list[Tracked]:
    """Find what MLflow has of a run of Airflow, trainings included that an experiment has found done."""
    found = await own_trainings(run, tracking)
    if tried_out(run["dag_id"]) and run["state"] == "success":
        result = await result_of(run, airflow)
        there = {each.run_id for each in found}
        for training in [] if result is None else result.trainings:
            of_training = training.tracking_run
            if of_training not in there and (earlier := await tracking.run(of_training)) is not None:
                found.append(earlier)
    return found


async def own_trainings(run: Mapping[str, Any], tracking: Tracking) -> list[Tracked]:
    """What MLflow has of a run of Airflow."""
    dag_id: str = run["dag_id"]
    owner = dag_id
    if pipeline := tried_out(dag_id):
        owner = place_of(run["triggering_user_name"], pipeline, run["conf"] or {})
    return await tracking.runs_of(owner, dag_id, run["dag_run_id"])


def _value(point: Point) -> Value:
    return Value(
        run=point.curve.run_id,
        name=point.training,
        metric=point.curve.metric,
        step=point.step,
        value=point.value if math.isfinite(point.value) else None,
        at=point.unix_milliseconds,
    )


def _crc(curve: CurveName) -> int:
    return zlib.crc32("/".join(curve).encode())


def _event_id(told: Told) -> str | None:
    if len(told) > _MOST_POSITIONS:
        return None
    return base64.urlsafe_b64encode(b"".join(_POSITION.pack(*each) for each in told.items())).decode()
