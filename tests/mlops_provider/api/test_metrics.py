"""The curves of a run, live, before a tracking of lists."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from rest_world import NAME, NIGHT

from mlops_provider.api import metrics
from mlops_provider.api.shared import SharedByName
from mlops_provider.curves import CurveName, Point


def point(step: int) -> Point:
    return Point(curve=CurveName("r", "loss"), training="train", step=step, value=0.5, unix_milliseconds=step)


def test_who_watches_beside_others_is_told_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: of two who watch a run each would miss values for good, and see holes in the curves."""
    points = [point(1), point(2)]

    async def read() -> list[Point]:
        return points

    monkeypatch.setattr(metrics, "_reader", lambda *_: read)
    monkeypatch.setattr(metrics, "_shared", SharedByName())
    monkeypatch.setattr(metrics, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(metrics, "STREAM_SECONDS", 3.0)
    run = {"dag_id": NAME, "dag_run_id": NIGHT, "state": "running"}
    nothing: Any = None

    async def watch() -> list[int]:
        told: list[int] = []
        async for event in metrics.stream(run, nothing, {}, nothing):
            if event.event == "value":
                told.append(json.loads(str(event.raw_data))["step"])
            if told == [1]:  # between the two, another one who watches has had more of them read
                points.append(point(3))
            if len(told) == 3:
                break
        return told

    assert asyncio.run(watch()) == [1, 2, 3]
