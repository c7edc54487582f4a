"""Promote is killed at any moment, beside a reader that never stops: one champion, one entry each, one end."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import pytest
from champion_reader import champion_reader
from mlflow import MlflowClient
from turns import by_turns, on_turn

from mlops.contract.refs import ModelVersionRef, Ref
from mlops.contract.step import Failure, StepInput
from mlops.registry.promotion import Promotion
from mlops.registry.transitions import Author
from mlops.tracking.connection import connect
from mlops.tracking.model_registry import ModelRegistry

MOMENTS = int(os.environ.get("CHAOS_ROUNDS", "1")) * 4
"""SIGKILLs at random moments."""


def settings(action: str = "promote", **changes: Any) -> dict[str, Any]:
    return {"action": action, "why": "", "decisions": [], "approvals": 0, "keys": [], "request": None, **changes}


@pytest.fixture
def promotion(project: Any) -> Promotion:
    return Promotion.of(ModelRegistry(client=connect(project.tracking_uri), name=project.pipeline), project.store)


@pytest.fixture
def registered(project: Any, run_step: Any, tracked_report: Any) -> Any:
    """Makes versions in staging, judged against a champion."""
    made: list[ModelVersionRef] = []

    def register(champion: str | None = None) -> ModelVersionRef:
        report = tracked_report(reason=f"Good, number {len(made)}.", champion=champion)
        document = project.step_input("register", {"registered_model": project.pipeline}, report, f"night {len(made)}")
        ref = run_step(project, document)
        assert isinstance(ref, ModelVersionRef), ref
        made.append(ref)
        return ref

    return register


def promote_input(project: Any, ref: ModelVersionRef, **changes: Any) -> StepInput:
    document: StepInput = project.step_input("promote", settings(**changes), ref, f"promote {ref.version} {changes}")
    return document


def is_version(ref: Any, version: ModelVersionRef, document: StepInput) -> bool:
    """Whether a step came to that version. What it was told is its own."""
    assert isinstance(ref, ModelVersionRef), ref
    return ref == dataclasses.replace(version, place=document.place, artifacts=ref.artifacts)


def actions(promotion: Promotion) -> list[tuple[str, str]]:
    """What the trail says, oldest first; it is checked to be whole."""
    return [(entry.action, entry.version) for entry in promotion.trail.newest_first()][::-1]


def in_production(project: Any) -> str:
    return str(
        MlflowClient(tracking_uri=project.tracking_uri).get_model_version_by_alias(project.pipeline, "champion").version
    )


STRUCK = """
import os, signal, sys

from mlops.registry.audit import AuditTrail
from mlops.steps.__main__ import main
from mlops.store import Store
from mlops.tracking.model_registry import ModelRegistry

# As long as the writes last: the number of the one to be killed at, and whether it is done before.
number, done = {number}, {done}
writes = 0


def struck(original):
    def write(self, *args, **kwargs):
        global writes
        writes += 1
        if writes == number and not done:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(self, *args, **kwargs)
        if writes == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return write


for owner, names in ((ModelRegistry, ("set_alias", "delete_alias", "set_tag")), (Store, ("put_new",))):
    for name in names:
        setattr(owner, name, struck(getattr(owner, name)))
main()
"""
WRITES_OF_A_PROMOTION = 7
"""The entry, two aliases, two tags, the marker, ref.json."""


@pytest.mark.parametrize(
    ("number", "done"),
    # After a write is before the next one.
    by_turns([*((number, False) for number in range(1, WRITES_OF_A_PROMOTION + 1)), (WRITES_OF_A_PROMOTION, True)]),
)
def test_killed_at_a_write_and_retried_it_promotes_once(
    project: Any, run_step: Any, registered: Any, promotion: Promotion, number: int, done: bool
) -> None:
    """Broken: a kill would leave two champions, none, or a trail that does not say what happened."""
    first = registered()
    assert isinstance(run_step(project, promote_input(project, first)), ModelVersionRef)
    second = registered("1")
    document = promote_input(project, second)
    with champion_reader(project.tracking_uri, project.pipeline) as found:
        started = project.start(document, program=["-c", STRUCK.format(number=number, done=done)])
        assert started.result() is None
        assert started.process.returncode == -signal.SIGKILL, started.log
        ref = run_step(project, document)
    assert is_version(ref, second, document)
    assert found == ["1", "2"], "exactly one champion at each moment, and no way back"
    assert actions(promotion) == [("register", "1"), ("promote", "1"), ("register", "2"), ("promote", "2")]
    tags = {str(v.version): v.tags["mlops.stage"] for v in promotion.registry.versions()}
    assert tags == {"1": "archived", "2": "production"}
    assert promotion.registry.aliases() == {"champion": "2"}


def test_the_kills_above_are_at_every_write(project: Any, run_step: Any, registered: Any) -> None:
    """Broken: a write that was added would not be struck."""
    run_step(project, promote_input(project, registered()))
    program = STRUCK.format(number=WRITES_OF_A_PROMOTION + 1, done=False)
    started = project.start(promote_input(project, registered("1")), program=["-c", program])
    assert isinstance(started.result(), ModelVersionRef), started.log


MANY = """
import sys
from pathlib import Path

from mlops.process import ProcessSettings
from mlops.contract.step import StepInput
from mlops.steps.execution import execute

# All of the queue in one process: importing mlflow takes longer than a promotion.
deployment = ProcessSettings.from_environment()
import mlflow  # so that the kills fall upon work
from mlops.tracking.connection import connect
connect(deployment.tracking_uri)
print("ready", flush=True)
for path in sorted(Path(sys.argv[-1]).parent.glob("queue/*.json")):
    execute(StepInput.load(path.read_text()), deployment)
"""


@on_turn(0, 2)
def test_killed_at_random_moments_the_end_is_the_same(
    project: Any, run_step: Any, registered: Any, promotion: Promotion
) -> None:
    """Broken: somewhere between the writes is a moment after which no retry comes to the right end."""
    chance = random.Random(2013)
    run_step(project, promote_input(project, registered()))
    queue = project.home / "jobs" / "step" / "queue"
    queue.mkdir(parents=True)
    kills, expected = 0, [("register", "1"), ("promote", "1")]
    with champion_reader(project.tracking_uri, project.pipeline) as found:
        for moment in range(MOMENTS):
            version = registered(str(moment + 1))
            document = promote_input(project, version)
            (queue / f"{moment:03}.json").write_text(document.dump())
            started = project.start(document, program=["-c", MANY])
            started.wait_until(lambda: "ready" in started.log)  # noqa: B023
            time.sleep(chance.uniform(0, 0.6))
            if started.process.poll() is None:
                started.kill()
                kills += 1
            started.process.wait(30)
            assert is_version(run_step(project, document), version, document)
            expected += [("register", version.version), ("promote", version.version)]
    assert kills > MOMENTS / 4
    assert found == [str(number + 1) for number in range(MOMENTS + 1)]
    assert actions(promotion) == expected


@on_turn(1, 2)
def test_writers_that_are_killed_never_mislead_the_next(project: Any, registered: Any, promotion: Promotion) -> None:
    """Many people at once, each killed at some moment: one order, nothing lost, nothing twice."""
    versions = [registered().version for _ in range(4)]
    program = f"""
import sys
from pathlib import Path

from mlops.registry.promotion import Promotion
from mlops.registry.transitions import Author
from mlops.store import Store
from mlops.tracking.connection import connect
from mlops.tracking.model_registry import ModelRegistry

registry = ModelRegistry(client=connect({project.tracking_uri!r}), name={project.pipeline!r})
promotion = Promotion.of(registry, Store({project.store.uri!r}))
chosen = sys.argv[1:]
print("ready", flush=True)
for turn in range(1000):
    promotion.promote_anyhow(chosen[turn % len(chosen)], Author(who="somebody", why="chaos"))
"""
    chance = random.Random(7)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    promotion.promote_anyhow("1", Author(who="vera", why="the first"))
    with champion_reader(project.tracking_uri, project.pipeline) as found:
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", program, *chance.sample(versions, 4)], env=environment, stdout=subprocess.PIPE
            )
            for _ in range(3)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        for writer in writers:
            done = promotion.trail.last().number + 3
            while promotion.trail.last().number < done:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.5))
            writer.kill()
            writer.wait(30)
        promotion.promote_anyhow("4", Author(who="vera", why="the last"))
    assert "" not in found
    assert not [champions for champions in found if "," in champions]
    entries = list(promotion.trail.newest_first())
    assert [entry.number for entry in entries] == list(range(len(entries), 0, -1))
    assert len(entries) > 10
    for newer, older in pairwise(entries):
        assert newer.former_champion == older.stages.champion, "each entry was decided on the one before"
    assert in_production(project) == "4"


def test_two_nights_at_once(project: Any, run_step: Any, registered: Any) -> None:
    first, second = registered(), registered()
    assert isinstance(run_step(project, promote_input(project, first)), Ref)
    failure = run_step(project, promote_input(project, second))
    assert isinstance(failure, Failure)
    assert (failure.type, failure.retryable) == ("ChampionChangedError", False)
    assert "is version 1 now" in failure.message


def test_a_rollback_hands_on_the_former_champion(project: Any, run_step: Any, registered: Any) -> None:
    first = registered()
    run_step(project, promote_input(project, first))
    second = registered("1")
    run_step(project, promote_input(project, second))
    document = promote_input(project, second, action="rollback", why="complaints", request="run 1")
    for _ in range(2):
        back = run_step(project, document)
        assert is_version(back, first, document)
    assert in_production(project) == "1"
