"""Where a request is put among those that wait, before an Airflow of dictionaries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rest_world import NAME, World


def waiting(begun: datetime, *priorities: str | None) -> list[dict[str, Any]]:
    """Runs of bob, a second after one another."""
    return [
        {
            "triggering_user_name": "bob", "run_after": (begun + timedelta(seconds=number)).isoformat(),
            "conf": None if priority is None else {"priority": priority},
        }
        for number, priority in enumerate(priorities)
    ]  # fmt: skip


def test_who_comes_first_is_told_the_data_of_now(world: World) -> None:
    """Broken: a run that was put before others would be of the data of the time when those were asked for."""
    long_ago = datetime.now(UTC) - timedelta(hours=30)
    world.waiting = waiting(long_ago, None, None, "normal")
    key = {"headers": {"Idempotency-Key": "mine"}}
    before = datetime.now(UTC)
    status, first = world.ask("POST", "/runs", {"pipeline": NAME, "until": "ingest"}, **key)
    assert status == 201, first
    (asked,) = world.triggered
    assert asked["run_after"] < (long_ago + timedelta(minutes=1)).isoformat()
    assert before <= datetime.fromisoformat(asked["conf"]["asked_at"]) <= datetime.now(UTC)
    assert first["asked"] == {"until": "ingest"}
    world.runs[f"{NAME}.experiments", asked["dag_run_id"]] = asked["conf"]
    again = world.ask("POST", "/runs", {"pipeline": NAME, "until": "ingest"}, **key)
    assert (again[0], again[1]["id"]) == (200, first["id"])
    other = world.ask("POST", "/runs", {"pipeline": NAME, "until": "ingest", "as_of": "2013-02-09"}, **key)
    assert (other[0], "another request" in other[1]) == (422, True)
    assert len(world.triggered) == 1
    assert world.ask("POST", "/runs", {"pipeline": NAME, "priority": "low"})[0] == 201
    assert world.triggered[-1]["conf"] == {"priority": "low"}, "it comes last, by Airflow's own time"


def test_all_that_wait_count(world: World) -> None:
    """Broken: Airflow gives a hundred at once, and who comes when more wait would begin after those that yield."""
    begun = datetime.now(UTC) - timedelta(hours=1)
    world.waiting = waiting(begun, *[None] * 120, *["low"] * 10)
    for number in range(3):
        status, answer = world.ask("POST", "/runs", {"pipeline": NAME, "until": "ingest"})
        assert status == 201, answer
        at = datetime.fromisoformat(world.triggered[-1]["run_after"])
        assert begun + timedelta(seconds=number) < at < begun + timedelta(seconds=number + 1)
        world.waiting.append({"triggering_user_name": "ana", "run_after": at.isoformat(), "conf": {}})
        world.waiting.sort(key=lambda each: str(each["run_after"]))
    world.waiting = waiting(begun, *["normal"] * 120, *["low"] * 10)
    for each in world.waiting[:120]:
        each["triggering_user_name"] = "ana"
    assert world.ask("POST", "/runs", {"pipeline": NAME, "until": "ingest"})[0] == 201
    at = datetime.fromisoformat(world.triggered[-1]["run_after"])
    assert begun + timedelta(seconds=119) < at < begun + timedelta(seconds=120)
