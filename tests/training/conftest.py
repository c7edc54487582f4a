"""A real MLflow server, and small projects to train in."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import services
from committed_refs import commit_lineage
from warm import WarmProcess

from mlops.contract.refs import (
    Artifact,
    DatasetRef,
    FeaturesRef,
    ModelVersionRef,
    Ref,
    ValidationRef,
    canonical_json,
    digest_of,
)
from mlops.contract.sections.train import Train
from mlops.contract.step import (
    Failure,
    RunIdentity,
    StepError,
    StepInput,
    connection_variable,
    python_path,
    read_result,
)
from mlops.process import ProcessSettings
from mlops.steps.execution import execute
from mlops.store import Store

CHECKOUT = Path(__file__).parents[2]
GPUS = list(Path("/proc/driver/nvidia/gpus").glob("*"))
STEPS_PROGRAM = ("-m", "mlops.steps")

MODEL = """
import torch
from mlops import MetricSpec, over_drawn_rows
from torch import nn


def build_model(config):
    first, last = nn.Linear(config.num_features, config.hidden), nn.Linear(config.hidden, 1)
    return nn.Sequential(first, nn.Tanh(), nn.Dropout(0.1), last, nn.Flatten(-2))


def build_idle(config):
    model = build_model(config)
    model.spare = nn.Parameter(torch.zeros(3))
    return model


def build_list(config):
    return [config.num_features]


def slow_loss(model, batch):
    import time

    from mlops.objectives.ranking import ranking_loss

    time.sleep(0.02)
    return ranking_loss(model, batch)


def struck_loss(model, batch):
    # As slow_loss, until rank 1 finds a file `strike` in the home folder, once, and does what it says.
    import os
    import resource
    import signal
    from pathlib import Path

    strike = Path(os.environ["MLOPS_HOME"]) / "strike"
    loss = slow_loss(model, batch)
    if os.environ["RANK"] != "1" or not strike.exists():
        return loss
    cause = strike.read_text()
    strike.unlink()
    if cause == "killed for memory":  # as the kernel does it
        os.kill(os.getpid(), signal.SIGKILL)
    if cause == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if cause == "out of memory":
        return loss + torch.ones(1 << 44).sum()
    if cause == "full disk":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return loss * float("nan") if cause == "not a number" else loss


def broken_loss(model, batch):
    scores = model(batch.features)
    return (scores * batch.mask).sum(1) / torch.where(torch.from_numpy(batch.samples).to(scores.device) == 7, 0.0, 1.0)


def brittle_loss(model, batch):
    if not all(torch.isfinite(each).all() for each in model.parameters()):
        raise RuntimeError("a weight is not finite")
    return broken_loss(model, batch)


def scattered_loss(model, batch):
    # Tensor.put_ has no deterministic algorithm, on no device.
    scores = model(batch.features)
    places = torch.arange(scores.numel(), device=scores.device)
    return torch.zeros_like(scores).flatten().put_(places, scores).view_as(scores).square().sum(1)


def huge_loss(model, batch):
    return torch.full_like(batch.weights, 3e30) + 0 * model(batch.features).sum()


def mean_loss(model, batch):
    return model(batch.features).mean()


def number_loss(model, batch):
    return 1.0


def broken(predictions, parameter):
    raise KeyError("gone")


BROKEN = MetricSpec(measures=["relevance"], higher_is_better=True, title="broken", weighted=broken)
MEAN_SCORE = MetricSpec(
    measures=["relevance"],
    higher_is_better=True,
    title="mean score",
    weighted=lambda predictions, _: over_drawn_rows(lambda labels, scores, _: scores.mean(), predictions),
)


def plain_descent(model, learning_rate, weight_decay):
    return torch.optim.SGD(model.parameters(), lr=learning_rate)


def nothing_yet(batch, progress):
    return torch.zeros_like(batch.weights)
"""


@pytest.fixture(scope="session")
def mlflow_server() -> Iterator[str]:
    """Address of a server with SQLite and proxied artifacts."""
    with services.mlflow_server() as address:
        yield address


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URI of a PostgreSQL server."""
    with services.postgres_server() as uri:
        yield uri


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """URI of a Redis server."""
    with services.redis_server() as uri:
        yield uri


@pytest.fixture(scope="session")
def s3_server() -> Iterator[dict[str, str]]:
    with services.s3_server() as environment:
        yield environment


@pytest.fixture
def s3(s3_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """URI of a bucket of an S3 server, which this process and its children find by their environment."""
    for name, value in s3_server.items():
        monkeypatch.setenv(name, value)
    return "s3://bucket"


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Hands an Airflow connection to the step, as the operator does."""

    def set_variable(name: str, conn_type: str, uri: str = "", **fields: Any) -> None:
        parts = urlsplit(uri)
        connection = {
            "conn_type": conn_type,
            "host": parts.hostname,
            "port": parts.port,
            "login": parts.username,
            "password": unquote(parts.password) if parts.password else None,
            "schema": parts.path.strip("/") or None,
            "extra": {},
        }
        monkeypatch.setenv(connection_variable(name), json.dumps(connection | fields))

    return set_variable


@dataclass(frozen=True)
class Project:
    """A home folder with a recipe, and a store."""

    home: Path
    store: Store
    tracking_uri: str
    pipeline: str

    def step_input(self, step: str, config: Mapping[str, Any], ref: Ref | None, run_key: str = "key") -> StepInput:
        run = RunIdentity(
            pipeline=self.pipeline,
            run_key=run_key,
            interval_start="2013-02-07T05:00:00+00:00",
            interval_end="2013-02-08T05:00:00+00:00",
            timezone="America/New_York",
            dag_id=self.pipeline,
            task_id=step,
            run_id="manual",
            try_number=1,
        )
        commit_lineage(self.store, ref)
        champion = self.champion(config["registered_model"]) if step == "evaluate" else None
        baselines = {} if champion is None else {"champion": champion}
        return StepInput(step=step, run=run, config=config, ref=ref, baselines=baselines)

    def champion(self, model: str) -> ModelVersionRef | None:
        """The version in production, as the operator of evaluate looks it up."""
        from mlops.registry.versions import report_of
        from mlops.tracking.connection import connect
        from mlops.tracking.model_registry import ModelRegistry

        registry = ModelRegistry(client=connect(self.tracking_uri), name=model)
        if (version := registry.version_of_alias("champion")) is None:
            return None
        return ModelVersionRef(
            place="", name=model, version=version, semantic_version="", parent=report_of(registry, version)
        )

    def steps_saved(self, run_key: str, step: str = "train") -> list[int]:
        """The steps of a training's complete checkpoints; copies of the best weights are none."""
        keys = self.store.list(f"pipelines/{self.pipeline}/{step}/{run_key}/checkpoints")
        return [int(key.split("step-")[1][:8]) for key in keys if "/step-" in key and key.endswith("/checkpoint.json")]

    def start(
        self,
        document: StepInput,
        *,
        processes: int = 1,
        name: str = "step",
        program: Sequence[str] = STEPS_PROGRAM,
        options: Sequence[str] = (),
        warm: bool = True,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> Started:
        """
        Run a step as the launcher does: in processes of its own, under torchrun where there are several.

        :param options: of torchrun
        :param warm: as :class:`WarmProcess` takes it
        :param environment: variables beside those that the launcher sets, or other values of these
        """
        folder = self.home / "jobs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "input.json").write_text(document.dump())
        (folder / "result.json").unlink(missing_ok=True)
        variables = {
            **os.environ,
            "PYTHONPATH": python_path(CHECKOUT),
            "MLOPS_HOME": str(self.home),
            "MLOPS_STORE": self.store.uri,
            "MLOPS_RESULT_PATH": str(folder / "result.json"),
            "MLFLOW_TRACKING_URI": self.tracking_uri,
            "OMP_NUM_THREADS": "1",
            # Processes share no GPU: where there are too few, all work without.
            **({"CUDA_VISIBLE_DEVICES": ""} if GPUS and processes > len(GPUS) else {}),
            **environment,
        }
        torchrun = ["-m", "mlops.steps.torchrun", "--nproc-per-node", str(processes), *options]
        ranks = processes > 1 or options
        command = [sys.executable, *(torchrun if ranks else []), *program, folder / "input.json"]
        with (folder / "log").open("w") as log:
            process = WarmProcess(command, env=variables, output=log, warm=warm)
        return Started(process=process, folder=folder)


@dataclass(frozen=True)
class Started:
    process: WarmProcess
    folder: Path

    def result(self) -> Any:
        """Wait; the ref or the failure."""
        self.process.wait(120)
        return read_result(self.folder / "result.json")

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def wait_until(self, happened: Callable[[], bool], seconds: float = 90) -> None:
        """While it runs."""
        deadline = time.monotonic() + seconds
        while not happened():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL it and its children, torchrun's workers say, at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


@pytest.fixture(scope="session")
def make_project(mlflow_server: str) -> Callable[[Path], Project]:
    """Lays out a project in a folder."""

    def make(folder: Path) -> Project:
        recipe = folder / "home" / "include" / "toy"
        recipe.mkdir(parents=True)
        (recipe / "model.py").write_text(MODEL)
        store = Store(f"file://{folder}/store")
        return Project(home=folder / "home", store=store, tracking_uri=mlflow_server, pipeline=f"toy_{folder.name}")

    return make


@pytest.fixture
def project(tmp_path: Path, make_project: Callable[[Path], Project]) -> Project:
    return make_project(tmp_path)


def train_config(**changes: Any) -> dict[str, Any]:
    small = {
        "model": "include.toy.model:build_model",
        "model_args": {"hidden": 8},
        "objective": "ranking",
        "metric": "ndcg@10",
        "global_batch": 16,
        "learning_rate": 0.01,
        "processes": 2,
        "logical_shards": 8,
        "collective_timeout_seconds": 60,
        "hang_seconds": 60,
        "seed": 7,
    }
    return Train.model_validate({**small, **changes}).model_dump(mode="json")


@pytest.fixture(scope="session")
def config() -> Any:
    """Makes a ``train`` section."""
    return train_config


@pytest.fixture
def toy_features(project: Project) -> FeaturesRef:
    """Queries whose relevance follows from the first of four features, as the features step would leave them."""
    return write_features(project.store, grouped=True)


@pytest.fixture
def binary_features(project: Project) -> FeaturesRef:
    """The same without queries; true is what is relevant."""
    return write_features(project.store, grouped=False)


def write_features(store: Store, *, grouped: bool) -> FeaturesRef:
    import numpy as np  # not in the validation runtime, whose tests load this file too

    from mlops.data.shards.feature_table import FeatureTable
    from mlops.data.shards.shard_writing import write_split

    rng = np.random.default_rng(0)
    splits = {}
    for name, num_queries in {"train": 400, "validation": 60, "test": 60}.items():
        offsets = np.concatenate([[0], np.cumsum(rng.integers(2, 8, num_queries))]).astype(np.int64)
        features = rng.normal(size=(offsets[-1], 4)).astype(np.float32)
        labels = np.clip(np.round(features[:, 0] + 2 + rng.normal(size=offsets[-1]) / 2), 0, 4).astype(np.float32)
        if not grouped:
            offsets, labels = np.arange(len(labels) + 1, dtype=np.int64), (labels > 2).astype(np.float32)
        table = FeatureTable(features=features, labels=labels, offsets=offsets)
        splits[name] = write_split(store, "features/toy", name, table)
    names: dict[str, Any] = {
        "feature_set": "include.toy.features:FEATURES",
        "feature_names": ["a", "b", "c", "d"],
        "categorical": [],
    }
    names |= {"label_names": ["label"], "several_labels": False}
    manifest = canonical_json({"grouped": grouped, **names, "splits": splits})
    return features_ref(store, manifest, {name: split["num_samples"] for name, split in splits.items()})


def features_ref(store: Store, manifest: bytes, num_samples: Mapping[str, int]) -> FeaturesRef:
    dataset = DatasetRef(
        place="ingest/toy",
        name="toy",
        version="1" * 64,
        schema_hash="2" * 64,
        num_rows=1,
        num_bytes=1,
        interval_start="2013-01-09T05:00:00+00:00",
        interval_end="2013-02-08T05:00:00+00:00",
    )
    validation = ValidationRef(place="validate/toy", schema_sha256="3" * 64, num_checks=1, parent=dataset)
    return FeaturesRef(
        # Other features are at another place, as those of a real step.
        place=f"features/toy-{hashlib.sha256(manifest).hexdigest()[:12]}",
        artifacts={"manifest": store.put_artifact("features/toy", "manifest.json", manifest)},
        version="4" * 64,
        num_features=4,
        num_samples=num_samples,
        parent=validation,
    )


@pytest.fixture
def toy_checkpoint(project: Project, run_step: Any) -> Any:
    """Trains ``include/toy`` on the rows of :mod:`toy_model`, and more columns."""
    import toy_model  # not in the validation runtime

    def train(*, binary: bool = False, columns: Sequence[Any] = (), key: str = "train", **changes: Any) -> Any:
        (project.home / "include/toy/features.py").write_text(toy_model.features(grouped=not binary))
        section = {"feature_set": "include.toy.features:FEATURES", "online": None}
        rows = toy_model.rows(binary=binary).with_columns(columns)
        data = toy_model.snapshot(project.store, project.home, rows)
        features = run_step(project, project.step_input("features", section, data, key))
        assert isinstance(features, FeaturesRef), features
        objective = {"objective": "binary", "metric": "auc"} if binary else {}
        section = train_config(**{"processes": 1, "epochs": 1, **objective, **changes})
        checkpoint = run_step(project, project.step_input("train", section, features, key))
        assert not isinstance(checkpoint, Failure), checkpoint
        return checkpoint

    return train


@pytest.fixture
def asked(project: Project, tmp_path: Path) -> Any:
    """Asks a checkpoint's model for rows, as its evaluation does: the artifact for the report."""
    from mlops.serving.archive import archived
    from mlops.serving.package import package, served_example
    from mlops.tracking.run import MODEL_PACKAGE

    def ask(checkpoint: Any) -> dict[str, Artifact]:
        with tempfile.TemporaryDirectory(dir=tmp_path) as scratch, pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(project.home)
            example = served_example(project.store, checkpoint, Path(scratch))
            made = archived(package(project.store, checkpoint, example, Path(scratch)), checkpoint)
        return {MODEL_PACKAGE: project.store.put_artifact("evaluate/asked", f"{MODEL_PACKAGE}.zip", made)}

    return ask


@pytest.fixture
def tracked_report(toy_checkpoint: Any, asked: Any) -> Any:
    """Makes reports of evaluations of a model that was trained."""
    from mlops.contract.refs import ReportRef

    checkpoint = toy_checkpoint()
    report = ReportRef(
        place="evaluate/toy",
        artifacts=asked(checkpoint),
        passed=True,
        reason="Good.",
        metrics={"ndcg@10": 0.8},
        champion=None,
        parent=checkpoint,
    )
    return lambda **changes: dataclasses.replace(report, place=f"evaluate/{digest_of(changes)[:12]}", **changes)


@pytest.fixture
def run_step() -> Any:
    """Runs a step in this process, without the seconds that another one takes to import torch."""

    def run(project: Project, document: StepInput, tracking_uri: str | None = None) -> Ref | Failure:
        deployment = ProcessSettings(
            home=project.home,
            store=project.store.uri,
            tracking_uri=project.tracking_uri if tracking_uri is None else tracking_uri,
            result_path=project.home / "result.json",
            rank=0,
        )
        sys.path.insert(0, str(project.home))
        try:
            ref = execute(document, deployment)
        except StepError as error:
            return Failure.of(error)
        finally:
            sys.path.remove(str(project.home))
            # Each test has its own include/toy.
            for name in [name for name in sys.modules if name.split(".")[0] == "include"]:
                del sys.modules[name]
        assert ref is not None
        return ref

    return run


@pytest.fixture
def crowded() -> Iterator[None]:
    """One processor for this thread and five busy loops."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(5)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
        os.sched_setaffinity(0, allowed)
