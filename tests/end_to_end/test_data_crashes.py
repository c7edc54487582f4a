"""
SIGKILL at random moments of ingest, validate and features, on the real flights. After each one everything that is
visible is whole; in the end every night has what it has when nothing disturbs it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from project import REPOSITORY
from store_watch import problems

from mlops.contract.refs import DatasetRef, FeaturesRef, Ref, ref_from_wire
from mlops.contract.step import STEPS, RunIdentity, StepInput, read_result
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import step_argv
from mlops_provider.launchers.process import step_environment
from mlops_provider.spec_file import load_pipeline

NUM_KILLS = int(os.environ.get("CHAOS_KILLS", "8"))
"""Eight here, a hundred in ``make chaos``."""
DATA_STEPS = ("ingest", "validate", "features")
PIPELINE = load_pipeline(REPOSITORY / "dags/flight_ranking.pipeline.yaml")
FIRST_NIGHT = datetime(2013, 3, 5, tzinfo=ZoneInfo("America/New_York"))
STEP_SECONDS = 120.0


def deployment(store: Path) -> Deployment:
    return Deployment(
        home=REPOSITORY,
        store=f"file://{store}",
        tracking_uri="",
        tracking_url="",
        pythons={runtime: REPOSITORY / f".venv/{runtime}/bin/python" for runtime in ("training", "validation")},
    )


def document(step: str, night: datetime, parent: Ref | None) -> StepInput:
    start, end = (moment.astimezone(ZoneInfo("UTC")) for moment in (night - timedelta(days=1), night))
    config = PIPELINE.model_dump(mode="json", by_alias=True)[step]
    if step == "validate":
        config["volume"] = {"tolerance": 0.5, "against": 7}  # Saturdays are no crashes
    identity = RunIdentity(
        pipeline="flight_ranking",
        run_key=f"{end:%Y%m%dT%H%M%SZ}-000000000000",
        interval_start=start.isoformat(),
        interval_end=end.isoformat(),
        timezone=PIPELINE.timezone,
        dag_id="flight_ranking",
        task_id=step,
        run_id=f"night_{night:%Y%m%d}",
        try_number=1,
    )
    return StepInput(step=step, run=identity, config=config, ref=parent)


def attempt(work: StepInput, store: Path, folder: Path, *, kill_after: float | None = None) -> Ref | None:
    """
    Run a step's process.

    :param kill_after: seconds until it is killed, unless it ends before
    :return: what it returned; None where it was killed
    """
    input_path, result = folder / "input.json", folder / "result.json"
    input_path.write_text(work.dump())
    result.unlink(missing_ok=True)
    place = deployment(store)
    python = place.pythons[STEPS[work.step].runtime]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            step_argv(str(python), str(input_path), 0),
            env=step_environment(place, result, os.environ),
            cwd=REPOSITORY,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(timeout=kill_after if kill_after is not None else STEP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            if kill_after is None:
                raise
    outcome = read_result(result)
    if outcome is None:
        assert kill_after is not None, (folder / "log.txt").read_text()
        return None
    assert isinstance(outcome, Ref), outcome
    return outcome


def content(ref: Ref) -> Mapping[str, str]:
    """What a night's data are; not who made them in which try."""
    features = ref.ancestor(FeaturesRef)
    shards = {name: features.artifacts[name].sha256 for name in ("manifest", "state", "code")}
    return {"snapshot": ref.ancestor(DatasetRef).version, **shards}


@pytest.mark.gang
@pytest.mark.timeout(3600)
def test_nothing_is_lost_or_half_written_whatever_is_killed(tmp_path: Path) -> None:
    chance = random.Random(NUM_KILLS)
    struck, calm = tmp_path / "struck", tmp_path / "calm"
    seconds = {}
    night, ref = FIRST_NIGHT, None
    for step in DATA_STEPS:
        begin = time.monotonic()
        ref = attempt(document(step, night, ref), calm, tmp_path)
        seconds[step] = time.monotonic() - begin
    assert ref is not None
    undisturbed = content(ref)

    kills = dict.fromkeys(DATA_STEPS, 0)
    results: list[Mapping[str, str]] = []
    while sum(kills.values()) < NUM_KILLS:
        ref = None
        for step in DATA_STEPS:
            parent, ref = ref, None
            for _ in range(chance.randint(1, 2)):
                moment = chance.uniform(0, seconds[step])
                ref = attempt(document(step, night, parent), struck, tmp_path, kill_after=moment)
                if ref is not None:  # it was quicker than the night before
                    break
                kills[step] += 1
                if found := list(problems(struck)):
                    pytest.fail(f"after killing {step} at {moment:.2f} s: {found}")
            if ref is None:
                begin = time.monotonic()
                ref = attempt(document(step, night, parent), struck, tmp_path)
                seconds[step] = time.monotonic() - begin
        results.append(content(ref))
        night += timedelta(days=1)
    assert results[0] == undisturbed
    assert list(problems(struck)) == []
    committed = [ref_from_wire(json.loads(path.read_text())) for path in struck.glob("pipelines/*/*/*/ref.json")]
    assert len(committed) == len(DATA_STEPS) * len(results)
    assert min(kills.values()) >= 1, kills
    print(f"killed {kills}, {len(results)} nights, {len(committed)} refs whole")
