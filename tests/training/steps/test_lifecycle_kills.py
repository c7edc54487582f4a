"""
SIGKILL at random moments of tune, evaluate, register and promote, night after night, beside a reader that never stops.
In the end every night has one study, one report, one version and one promotion, and the trail says so.
"""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from champion_reader import champion_reader
from mlflow import MlflowClient
from services import mlflow_server, postgres_server

from mlops.contract.refs import CheckpointRef, FeaturesRef, ModelVersionRef, Ref, ReportRef, StudyRef
from mlops.contract.step import StepInput
from mlops.registry.promotion import Promotion
from mlops.tracking.connection import connect
from mlops.tracking.model_registry import ModelRegistry

NUM_KILLS = int(os.environ.get("CHAOS_LIFECYCLE", "3"))
"""A few here, fifty in ``make chaos``."""
NUM_TRIALS = 2
SECONDS_AT_FIRST = 6.0
"""That a step is taken to last before one has."""
KILLED_STEPS = ("trial", "tune", "evaluate", "register", "promote")


@pytest.fixture(scope="module")
def tracking_uri() -> Iterator[str]:
    with postgres_server() as database, mlflow_server(database) as uri:
        yield uri


@pytest.fixture
def project(tmp_path: Path, make_project: Callable[[Path], Any], tracking_uri: str) -> Any:
    return dataclasses.replace(make_project(tmp_path), tracking_uri=tracking_uri)


class Strikes:
    """Runs steps to their end, killing each a few times on the way."""

    def __init__(self, project: Any, run_step: Any) -> None:
        self._project, self._run_step = project, run_step
        self._chance = random.Random(NUM_KILLS)
        self._seconds = dict.fromkeys(KILLED_STEPS, SECONDS_AT_FIRST)
        self.kills = dict.fromkeys(KILLED_STEPS, 0)

    def __call__(self, document: StepInput) -> Ref:
        for _ in range(self._chance.randint(1, 2)):
            if (ref := self._attempt(document, self._chance.uniform(0, self._seconds[document.step]))) is not None:
                return ref
            self.kills[document.step] += 1
        ref = self._attempt(document, None)
        assert ref is not None, "only a kill leaves a step without a result"
        return ref

    def _attempt(self, document: StepInput, kill_after: float | None) -> Ref | None:
        begin = time.monotonic()
        started = self._project.start(document, name=f"{document.step}-{document.run.run_key}")
        if kill_after is not None:
            try:
                started.process.wait(kill_after)
            except subprocess.TimeoutExpired:
                started.kill()
        result = started.result()
        assert result is None or isinstance(result, Ref), (result, started.log)
        if result is not None:
            self._seconds[document.step] = time.monotonic() - begin
        return result


def search(config: Any, night: int) -> Mapping[str, Any]:
    return {
        "space": {"learning_rate": {"low": 1e-4, "high": 0.3, "log": True, "step": None}},
        "sampler": "random",
        "sampler_settings": {},
        "pruner": "none",
        "pruner_settings": {},
        "trials": NUM_TRIALS,
        "hours": None,
        "gpu_hours": None,
        "parallel": 1,
        "connection": None,
        "seed": night,
        "train": config(processes=1, epochs=1),
    }


def judgement(project: Any) -> Mapping[str, Any]:
    return {
        "registered_model": project.pipeline,
        "metric": "ndcg@10",
        "metrics": [],
        "rules": [{"metric": "ndcg@10", "at_least": 0.0, "at_most": None}],
        "slices": [],
        "fairness": [],
        "price_per_gpu_hour": None,
    }


@pytest.mark.timeout(3600)
def test_one_champion_one_version_and_a_whole_trail_whatever_is_killed(
    project: Any, run_step: Any, toy_checkpoint: Any, config: Any
) -> None:
    features = toy_checkpoint().ancestor(FeaturesRef)
    strike = Strikes(project, run_step)
    reports: list[ReportRef] = []
    studies: list[StudyRef] = []
    with champion_reader(project.tracking_uri, project.pipeline) as found:
        while sum(strike.kills.values()) < NUM_KILLS:
            night, key = len(reports), f"night_{len(reports)}"
            section = search(config, night)
            for number in range(NUM_TRIALS):
                strike(project.step_input("trial", {**section, "number": number}, features, f"{key}_{number}"))
            study = strike(project.step_input("tune", section, features, key))
            assert isinstance(study, StudyRef)
            checkpoint = run_step(project, project.step_input("train", config(processes=1, epochs=1), study, key))
            assert isinstance(checkpoint, CheckpointRef), checkpoint
            report = strike(project.step_input("evaluate", judgement(project), checkpoint, key))
            assert isinstance(report, ReportRef)
            version = strike(project.step_input("register", {"registered_model": project.pipeline}, report, key))
            assert isinstance(version, ModelVersionRef)
            promote = {"action": "promote", "why": "", "decisions": [], "approvals": 0, "keys": [], "request": None}
            strike(project.step_input("promote", promote, version, key))
            studies.append(study)
            reports.append(report)

    numbers = [str(number) for number in range(1, len(reports) + 1)]
    assert [champion for champion in found if champion] == numbers, "one at each moment, and no way back"
    assert all(study.trials == {"complete": NUM_TRIALS, "pruned": 0, "failed": 0, "not begun": 0} for study in studies)
    assert [report.champion for report in reports] == [None, *numbers[:-1]]
    registry = ModelRegistry(client=connect(project.tracking_uri), name=project.pipeline)
    trail = [(entry.action, entry.version) for entry in Promotion.of(registry, project.store).trail.newest_first()]
    assert trail[::-1] == [(action, number) for number in numbers for action in ("register", "promote")]
    versions = {str(version.version): version for version in registry.versions()}
    assert sorted(versions, key=int) == numbers
    stages = [versions[number].tags["mlops.stage"] for number in numbers]
    assert stages == ["archived"] * (len(numbers) - 1) + ["production"]
    client = MlflowClient(tracking_uri=project.tracking_uri)
    assert client.get_registered_model(project.pipeline).aliases == {"champion": numbers[-1]}
    print(f"killed {strike.kills}, {len(reports)} nights")
