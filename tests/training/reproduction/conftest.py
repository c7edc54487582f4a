"""A registered model, made by real steps in a git repository of its own, and the commands that ask about it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
import pytest
from warm import run_warm

from mlops.contract.code_files import code_digest
from mlops.contract.refs import (
    CheckpointRef,
    DatasetRef,
    FeaturesRef,
    ModelVersionRef,
    Ref,
    ReportRef,
    StudyRef,
    ValidationRef,
)
from mlops.contract.sections.ingest import TimeSplit
from mlops.contract.step import python_path
from mlops.data.snapshots.snapshot import write_snapshot
from mlops.data.sources.window import Window
from mlops.store import Store

CHECKOUT = Path(__file__).parents[3]
START = datetime(2013, 1, 9, tzinfo=UTC)
FEATURES = """
from mlops import FeatureSet, Standardise

FEATURES = FeatureSet(
    label="label", group_by=("query",), min_group_size=2, order_by=("at", "item"),
    transforms=[Standardise("good"), Standardise("poor")],
)
"""
COMMAND_SECONDS = 240


def snapshot(store: Store, scratch: Path, days: int = 8, seed: int = 0) -> ValidationRef:
    """Queries of 2 to 5 items; ``good`` says much about the label, ``poor`` little."""
    rng = np.random.default_rng(seed)
    rows = []
    for query in range(days * 30):
        for item in range(int(rng.integers(2, 6))):
            good, poor = rng.normal(size=2)
            at = START + timedelta(days=query // 30, minutes=query)
            label = int(np.clip(round(2 + good + 0.3 * poor + rng.normal() / 2), 0, 4))
            rows.append({"at": at, "query": query, "item": item, "good": good, "poor": poor, "label": label})
    window = Window.before(START + timedelta(days=days), days, "UTC")
    manifest = write_snapshot(
        store, nw.from_native(pl.DataFrame(rows).lazy()), name="toy", window=window, event_time="at", sources={},
        split=TimeSplit(validation=2, test=2), creator={}, engine="polars", scratch=scratch,
    )  # fmt: skip
    dataset = DatasetRef(
        place=f"ingest/toy-{seed}-{manifest.version[:12]}",
        artifacts={"manifest": store.put_artifact(f"ingest/toy-{seed}", "manifest.json", manifest.to_json())},
        name="toy",
        version=manifest.version,
        schema_hash=manifest.schema_hash,
        num_rows=manifest.num_rows,
        num_bytes=manifest.num_bytes,
        interval_start=manifest.interval_start,
        interval_end=manifest.interval_end,
    )
    return ValidationRef(
        place=f"validate/toy-{seed}-{manifest.version[:12]}", schema_sha256="0" * 64, num_checks=1, parent=dataset
    )


def git(home: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Someone", "-c", "user.email=someone@example.org"]
    done = subprocess.run(["git", "-C", str(home), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@dataclass(frozen=True)
class Recipe:
    """A project whose home folder is a git repository, and the steps that make a model of it."""

    project: Any
    config: Any
    run_step: Any = None
    """Runs steps of one process in this one, without the seconds that another takes to import torch."""

    @classmethod
    def parallelise(cls, project: Any, config: Any) -> Recipe:
        """Committed, and clean."""
        recipe = cls(project=project, config=config)
        (recipe.home / "include/toy/features.py").write_text(FEATURES)
        (recipe.home / ".gitignore").write_text("__pycache__/\njobs/\n")
        recipe.lock.parent.mkdir()
        recipe.lock.write_text("torch==2.13.0\n")
        git(recipe.home, "init", "--quiet")
        recipe.commit("A recipe")
        return recipe

    @property
    def home(self) -> Path:
        home: Path = self.project.home
        return home

    @property
    def store(self) -> Store:
        store: Store = self.project.store
        return store

    @property
    def model(self) -> Path:
        return self.home / "include/toy/model.py"

    @property
    def lock(self) -> Path:
        return self.home / "training/requirements.txt"

    def commit(self, message: str) -> str:
        git(self.home, "add", "--all")
        git(self.home, "commit", "--quiet", "--message", message)
        return self.head

    @property
    def head(self) -> str:
        return git(self.home, "rev-parse", "HEAD")

    def state(self) -> list[str]:
        """Of the repository: what is checked out, what differs, which further checkouts there are."""
        return [self.head, git(self.home, "status", "--porcelain"), git(self.home, "worktree", "list")]

    def features(self, key: str = "first", seed: int = 0) -> FeaturesRef:
        section = {"feature_set": "include.toy.features:FEATURES", "online": None}
        ref = self._run("features", section, snapshot(self.store, self.home.parent, seed=seed), key)
        assert isinstance(ref, FeaturesRef)
        return ref

    def datasets(self) -> list[DatasetRef]:
        """Of the features that were committed."""
        place = f"pipelines/{self.project.pipeline}/features"
        refs = [self.store.committed(f"{place}/{key}") for key in self.store.folders(place)]
        return list({ref.ancestor(DatasetRef).version: ref.ancestor(DatasetRef) for ref in refs if ref}.values())

    def tune(self, features: FeaturesRef, key: str = "first", **changes: Any) -> StudyRef:
        """A study of one trial."""
        section = {
            "space": {
                "learning_rate": {"low": 1e-4, "high": 0.3, "log": True, "step": None},
                "model_args.hidden": {"choices": [4, 8, 16]},
            },
            "sampler": "random",
            "sampler_settings": {},
            "pruner": "none",
            "pruner_settings": {},
            "trials": 1,
            "hours": None,
            "gpu_hours": None,
            "parallel": 1,
            "connection": None,
            "seed": 0,
            "train": self.config(processes=1, epochs=2),
            **changes,
        }
        self._run("trial", section | {"number": 0}, features, key)
        ref = self._run("tune", section, features, key)
        assert isinstance(ref, StudyRef)
        return ref

    def train(
        self,
        features: FeaturesRef | StudyRef,
        *,
        processes: int = 1,
        nodes: int = 1,
        key: str = "first",
        **changes: Any,
    ) -> CheckpointRef:
        """:param nodes: of ``processes`` each, all on this machine"""
        section = self.config(**{"processes": processes, "nodes": nodes, "epochs": 2, **changes})
        ref = self._run("train", section, features, key, processes=processes, nodes=nodes)
        assert isinstance(ref, CheckpointRef)
        return ref

    def register(self, checkpoint: CheckpointRef, key: str = "first") -> str:
        """``MODEL/VERSION``"""
        model = {"registered_model": self.project.pipeline}
        section = {
            **model,
            "metric": "ndcg@10",
            "metrics": [],
            "rules": [{"metric": "ndcg@10", "at_least": 0.0, "at_most": None}],
            "slices": [],
            "fairness": [],
            "price_per_gpu_hour": None,
        }
        report = self._run("evaluate", section, checkpoint, key)
        assert isinstance(report, ReportRef)
        # Which of two models of a test is better is not its matter.
        version = self._run("register", model, dataclasses.replace(report, passed=True), key)
        assert isinstance(version, ModelVersionRef)
        return f"{version.name}/{version.version}"

    def mlops(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        places = {
            "PYTHONPATH": python_path(CHECKOUT),
            "MLOPS_HOME": str(self.home),
            "MLOPS_STORE": self.store.uri,
            "MLFLOW_TRACKING_URI": self.project.tracking_uri,
            **environment,
        }
        command = [sys.executable, "-m", "mlops.commands", *arguments]
        return run_warm(command, env=os.environ | places, timeout=COMMAND_SECONDS)

    def _run(
        self, step: str, section: dict[str, Any], ref: Ref, key: str, *, processes: int = 1, nodes: int = 1
    ) -> Ref:
        """In processes of its own, as the launcher does it, unless there is :attr:`run_step`."""
        paths = ("include/toy",) if step in ("features", "trial", "tune", "train") else ()
        document = dataclasses.replace(
            self.project.step_input(step, section, ref, key),
            code_paths=paths,
            code=code_digest([self.home / path for path in paths]),
        )
        if self.run_step is not None and processes * nodes == 1:
            done = self.run_step(self.project, document)
            assert isinstance(done, Ref), done
            return done
        options = ("--nnodes", str(nodes)) if nodes > 1 else ()
        started = self.project.start(document, processes=processes, name=f"{step}-{key}", options=options)
        result = started.result()
        assert isinstance(result, Ref), started.log
        return result


@pytest.fixture
def recipe(project: Any, config: Any) -> Recipe:
    return Recipe.parallelise(project, config)


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory, make_project: Any, config: Any) -> tuple[Recipe, str]:
    """A model of one process that several tests look at, and leave as it is."""
    recipe = Recipe.parallelise(make_project(tmp_path_factory.mktemp("registered")), config)
    return recipe, recipe.register(recipe.train(recipe.features()))
