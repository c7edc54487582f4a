"""A model in production that another release of the library registered, with another release of Polars."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import toy_model
from other_packages import REPOSITORY
from turns import on_turn

from mlops.contract.refs import CheckpointRef, FeaturesRef, ModelVersionRef, ReportRef
from mlops.contract.step import Failure, StepInput

OTHER_POLARS = "2.0.0"
MOVED = {"mlops.predictor": "mlops.opened", "serving.json": "opened.json"}
"""Names of this release, and what they are called in the other: of a folder, and of a stored file."""


@pytest.fixture(scope="module")
def other_release(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a process that has another release: internals moved, and another Polars."""
    folder = tmp_path_factory.mktemp("other")
    library = folder / "training"
    shutil.copytree(REPOSITORY / "training", library, ignore=shutil.ignore_patterns("__pycache__"))
    (library / "mlops/predictor").rename(library / "mlops/opened")
    for file in library.rglob("*.py"):
        text = file.read_text()
        for name, moved in MOVED.items():
            text = text.replace(name, moved)
        file.write_text(text)
    packages = folder / "packages"
    uv = REPOSITORY / ".venv/uv/bin/uv"
    subprocess.run([uv, "pip", "install", "--quiet", "--target", packages, f"polars=={OTHER_POLARS}"], check=True)
    return {"PYTHONPATH": f"{packages}:{library}:{REPOSITORY}"}


@pytest.fixture
def run(project: Any, run_step: Any) -> Any:
    """Runs a step in this process, or in one of another release, and returns its result and its log."""

    def start(document: StepInput, environment: Mapping[str, str] | None = None) -> tuple[Any, str]:
        if environment is None:
            return run_step(project, document), ""
        name = f"{document.run.run_key}-{document.step}"
        started = project.start(document, name=name, warm=False, environment=environment)
        return started.result(), started.log

    return start


@pytest.fixture
def trained(project: Any, run: Any, config: Any) -> Any:
    """Trains the toy recipe; returns the input of its evaluation."""

    def train(key: str, environment: Mapping[str, str] | None = None, **changes: Any) -> StepInput:
        (project.home / "include/toy/features.py").write_text(toy_model.features(grouped=True))
        data = toy_model.snapshot(project.store, project.home, toy_model.rows())
        section = {"feature_set": "include.toy.features:FEATURES", "online": None}
        features, log = run(project.step_input("features", section, data, key), environment)
        assert isinstance(features, FeaturesRef), (features, log)
        section = config(processes=1, epochs=1, **changes)
        checkpoint, log = run(project.step_input("train", section, features, key), environment)
        assert isinstance(checkpoint, CheckpointRef), (checkpoint, log)
        evaluate = {
            "registered_model": project.pipeline, "metric": "ndcg@10", "metrics": [], "slices": [], "fairness": [],
            "rules": [{"improvement": 0.0, "min_samples": 30}], "price_per_gpu_hour": None,
        }  # fmt: skip
        return cast(StepInput, project.step_input("evaluate", evaluate, checkpoint, key))

    return train


@on_turn(0, 2)
def test_it_is_scored_with_what_it_was_registered_with(
    project: Any, run: Any, trained: Any, other_release: Mapping[str, str], tmp_path: Path
) -> None:
    """Broken: an upgrade of ours, or of Polars, would end the scoring of every champion, and so every night."""
    first, _ = run(trained("first"))
    assert isinstance(first, ReportRef), first
    version, _ = run(project.step_input("register", {"registered_model": project.pipeline}, first, "first"))
    move = {"action": "promote", "why": "", "decisions": [], "approvals": 0, "keys": [], "request": None}
    assert isinstance(run(project.step_input("promote", move, version, "first"))[0], ModelVersionRef)

    evaluation = trained("second", other_release, seed=3)
    engine = json.loads(project.store.read(evaluation.ref.ancestor(FeaturesRef).artifacts["manifest"]))["engine"]
    assert engine["polars"] == OTHER_POLARS

    # What cannot be had is named, with the ways out.
    nowhere = {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_FIND_LINKS": ""}
    failure, log = run(evaluation, {**other_release, **nowhere})
    assert isinstance(failure, Failure), (failure, log)
    assert not failure.retryable
    for part in (
        "version 1 (champion), cannot be scored",
        "it was registered with polars==",
        "which cannot be installed here",
        "mlops models rollback",
        "mlops models retire",
    ):
        assert part in failure.message

    report, log = run(evaluation, other_release)
    assert isinstance(report, ReportRef), (report, log)
    assert "installing what the model was registered with: polars==" in log
    assert report.champion == "1"
    assert report.metrics["champion.ndcg@10"] == first.metrics["ndcg@10"]
    assert report.metrics["ndcg@10"] != first.metrics["ndcg@10"]
