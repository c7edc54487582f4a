"""``mlops store verify --heal`` on a night that real steps made, each step's objects damaged in turn."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import project as small_project
import pytest
from mlflow import MlflowClient
from turns import on_turn
from warm import WarmProcess, run_warm

from mlops.contract.code_files import code_digest
from mlops.contract.refs import (
    Artifact,
    CheckpointRef,
    DatasetRef,
    FeaturesRef,
    ModelVersionRef,
    PredictionsRef,
    Ref,
    ReportRef,
    ValidationRef,
    named_in,
)
from mlops.contract.step import STEPS, RunIdentity, StepInput, python_path, read_result
from mlops.store import Store

CHECKOUT = Path(__file__).parents[3]
NAME = "events"
INGEST = {
    "sources": {
        "events": {
            "kind": "files", "path": "data/events.csv", "event_time": "at", "created_time": None, "null_values": ["NA"],
            "key": [], "history_days": None, "types": {},
        }
    },
    "transform": "include.events.dataset:results", "event_time": "at", "window": 7,
    "split": {"validation": 1, "test": 2}, "engine": "polars",
}  # fmt: skip
VALIDATE = {
    "schema_path": "include/events/schema.pbtxt", "volume": {"tolerance": 0.2, "against": 1},
    "drift": {"numbers": 0.1, "values": 0.1, "columns": {}}, "unique": [], "max_age_hours": None, "slices": [],
    "slice_tolerance": 0.25, "serving_log": None,
}  # fmt: skip
EVALUATE = {
    "registered_model": NAME, "metric": "ndcg@10", "metrics": [],
    "rules": [{"metric": "ndcg@10", "at_least": 0.0, "at_most": None}], "slices": [], "fairness": [],
    "price_per_gpu_hour": None,
}  # fmt: skip


@dataclass(frozen=True)
class Night:
    """A store, and the project that fills it."""

    home: Path
    store: Store
    tracking_uri: str

    def run(self, step: str, config: Mapping[str, Any], ref: Ref | None, **baselines: Ref) -> Any:
        identity = RunIdentity(
            pipeline=NAME, run_key="20240112T000000Z-aaaaaaaaaaaa", interval_start="2024-01-11T00:00:00+00:00",
            interval_end="2024-01-12T00:00:00+00:00", timezone="UTC", dag_id=NAME, task_id=step, run_id="night",
            try_number=2,
        )  # fmt: skip
        paths = ["include/events"] if step in ("ingest", "validate", "features", "train") else []
        code = code_digest([self.home / path for path in paths])
        document = StepInput(
            step=step, run=identity, config=config, ref=ref, baselines=baselines, code_paths=paths, code=code
        )
        folder = self.home / "jobs" / step
        folder.mkdir(parents=True)
        (folder / "input.json").write_text(document.dump())
        environment = self.environment | {"MLOPS_RESULT_PATH": str(folder / "result.json")}
        command = ["-m", "mlops.steps", str(folder / "input.json")]
        if STEPS[step].runtime == "validation":
            python = CHECKOUT / ".venv/validation/bin/python"
            done = subprocess.run([python, *command], env=environment, capture_output=True, text=True, check=False)
        else:
            done = run_warm([sys.executable, *command], env=environment, timeout=120)
        result = read_result(folder / "result.json")
        assert isinstance(result, Ref), f"{result} {done.stdout}{done.stderr}"
        return result

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": python_path(CHECKOUT),
            "MLOPS_HOME": str(self.home),
            "MLOPS_STORE": self.store.uri,
            "MLFLOW_TRACKING_URI": self.tracking_uri,
            "OMP_NUM_THREADS": "1",
        }

    def verify(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mlops.commands", "store", "verify", *options]
        return run_warm(command, env=self.environment, timeout=300)

    def heal(self) -> dict[str, Any]:
        """What came of it, by key."""
        done = self.verify("--heal", "--yes", "--json")
        assert done.stdout, done.stderr
        return {item["key"]: item for item in json.loads(done.stdout)["damage"]}

    def contents(self) -> dict[str, bytes]:
        """Without what was set aside, and what only a training itself reads and writes."""
        keys = self.store.list("")
        return {
            key: self.store.get(key)
            for key in keys
            if not key.startswith("damaged/")
            and not key.endswith("/generations/00000002.json")
            and "/events/" not in key  # that it was made again is one
        }


@dataclass(frozen=True)
class Made:
    night: Night
    version: ModelVersionRef
    predictions: PredictionsRef

    def __getitem__(self, kind: type[Ref]) -> Any:
        return self.version.ancestor(kind)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, mlflow_server: str, config: Any) -> Made:
    folder = tmp_path_factory.mktemp("healing")
    home = small_project.make_project(folder / "home")
    night = Night(home=home, store=Store(f"file://{folder}/store"), tracking_uri=mlflow_server)
    ref = night.run("ingest", INGEST, None)
    ref = night.run("validate", VALIDATE, ref)
    ref = night.run("features", {"feature_set": "include.events.features:FEATURES", "online": None}, ref)
    settings = {"model": "include.events.model:build_model", "model_args": {}, "processes": 1, "epochs": 2}
    ref = night.run("train", config(**settings), ref)
    ref = night.run("evaluate", EVALUATE, ref)
    version = night.run("register", {"registered_model": NAME}, ref)
    asked = {"registered_model": NAME, "version": version.version, "columns": None, "output": None}
    looked_up = dataclasses.replace(version, place="")
    predictions = night.run("predict", asked, version.ancestor(ValidationRef), model=looked_up)
    return Made(night=night, version=version, predictions=predictions)


@pytest.fixture
def night(made: Made, tmp_path: Path) -> Night:
    """A copy of the store, to be damaged."""
    shutil.copytree(made.night.store.uri.removeprefix("file://"), tmp_path / "store")
    return dataclasses.replace(made.night, store=Store(f"file://{tmp_path}/store"))


def flip(store: Store, key: str) -> None:
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))


def objects(made: Made) -> Iterator[tuple[str, Artifact]]:
    """What can be made again, by what it is."""
    store = made.night.store
    manifests = {kind: made[kind].artifacts["manifest"] for kind in (DatasetRef, FeaturesRef)}
    yield "a day's rows", named_in(store.read(manifests[DatasetRef]))[2]
    yield "a shard", named_in(store.read(manifests[FeaturesRef]))[0]
    for kind, artifact in manifests.items():
        yield f"the manifest of the {kind.kind}", artifact
    for kind, name in (
        (ValidationRef, "report"), (ValidationRef, "statistics"), (FeaturesRef, "state"), (CheckpointRef, "weights"),
        (CheckpointRef, "history"), (ReportRef, "report"), (ReportRef, "metrics"),
    ):  # fmt: skip
        yield f"{name} of the {kind.kind}", made[kind].artifacts[name]


def test_all_that_steps_made_is_made_again_to_the_same_bits(made: Made, night: Night) -> None:
    """Broken: after a disk's damage each object would be looked for in a backup, or given up with its model."""
    assert night.verify().returncode == 0
    before = night.contents()
    chosen = dict(objects(made))
    keys = {artifact.key for artifact in chosen.values()}
    for number, key in enumerate(sorted(keys)):
        if number % 2:
            flip(night.store, key)
        else:
            night.store.delete([key])
    cut = [f"{made[kind].place}/ref.json" for kind in (DatasetRef, CheckpointRef)]
    for key in cut:
        night.store.put(key, night.store.get(key)[:-20])
    manifests = {made[kind].artifacts["manifest"].key for kind in (DatasetRef, FeaturesRef)}
    hidden = {chosen["a day's rows"].key, chosen["a shard"].key}
    first = night.heal()
    assert first.keys() == {*keys, *cut} - hidden
    assert {key: item for key, item in first.items() if not item["outcome"] or not item["outcome"]["healed"]} == {}
    assert {key for key, item in first.items() if item["hides"]} == manifests
    # Where a step is done again for its manifest, it makes all the rest.
    assert night.verify().returncode == 0
    assert night.contents() == before
    aside = list(night.store.list("damaged"))
    flipped = {key for number, key in enumerate(sorted(keys)) if number % 2}
    assert len(aside) == len({*flipped, *cut} - hidden), "what was found damaged, and not missing, is kept"


@pytest.mark.parametrize("lost", ["answers of two days", "manifest"])
def test_predictions_are_made_again_to_the_same_bits(made: Made, night: Night, lost: str) -> None:
    """Broken: what others have acted on would be gone, for another model would answer otherwise today."""
    before = night.contents()
    manifest = made.predictions.artifacts["manifest"]
    first, *_, last = named_in(night.store.read(manifest))
    keys = [manifest.key] if lost == "manifest" else [first.key, last.key]
    flip(night.store, keys[0])
    night.store.delete(keys[1:])
    items = night.heal()
    assert items.keys() == set(keys)
    assert {key: item for key, item in items.items() if not item["outcome"] or not item["outcome"]["healed"]} == {}
    assert night.contents() == before
    assert night.verify().returncode == 0


def test_versions_are_named_with_their_stage(made: Made, night: Night) -> None:
    """Broken: whoever reads of damage would not know whether it is in production."""
    flip(night.store, made[CheckpointRef].artifacts["weights"].key)
    version = made.version
    client = MlflowClient(night.tracking_uri)
    client.set_registered_model_alias(version.name, "champion", version.version)
    try:
        done = night.verify()
    finally:
        client.delete_registered_model_alias(version.name, "champion")
    assert f"model versions {version.name}/{version.version} (staging, the champion)" in done.stdout
    assert f"runs {NAME}/night" in done.stdout


@on_turn(0, 2)
def test_what_cannot_be_made_again_is_left_as_it_is(made: Made, night: Night, tmp_path: Path) -> None:
    """Broken: what people may still mend by hand would be lost, or bytes of another training take its place."""
    checkpoint = made[CheckpointRef]
    history = checkpoint.artifacts["history"].key
    flip(night.store, history)
    night.store.delete(list(night.store.list(f"{checkpoint.place}/checkpoints")))
    damaged = night.store.get(history)
    item = night.heal()[history]
    assert not item["outcome"]["healed"]
    assert "history is now" in item["outcome"]["sentence"], "its clock is in it"
    assert night.store.get(history) == damaged


def test_without_the_source_the_days_are_not_made_up(made: Made, night: Night, tmp_path: Path) -> None:
    """Broken: a source that was corrected meanwhile would put other rows under an old snapshot."""
    blob = dict(objects(made))["a day's rows"].key
    flip(night.store, blob)
    damaged = night.store.get(blob)
    home = small_project.make_project(tmp_path / "home")
    text = (home / "data/events.csv").read_text().splitlines()
    changed = [line.rpartition(",")[0] + ",0" if "2024-01-0" in line else line for line in text]
    (home / "data/events.csv").write_text("\n".join(changed) + "\n")
    there = dataclasses.replace(night, home=home)
    item = there.heal()[blob]
    assert not item["outcome"]["healed"]
    assert night.store.get(blob) == damaged
    assert dataclasses.replace(night, home=made.night.home).heal()[blob]["outcome"]["healed"]


def test_code_that_has_moved_on_is_taken_from_where_it_is_kept(made: Made, night: Night, tmp_path: Path) -> None:
    """Broken: after the next change of a recipe nothing old could be made again, or is made by other code."""
    shard, page = (dict(objects(made))[what].key for what in ("a shard", "report of the validation"))
    for key in (shard, page):
        flip(night.store, key)
    home = small_project.make_project(tmp_path / "home")
    recipe = home / "include/events/features.py"
    recipe.write_text(recipe.read_text().replace('Standardise("rating")', 'Standardise("item")'))
    items = dataclasses.replace(night, home=home).heal()
    assert items[shard]["outcome"]["healed"], "by the recipe that is stored beside it"
    assert "the code that validate ran is not that of" in items[page]["outcome"]["sentence"]


@on_turn(1, 2)
def test_a_killed_healing_is_gone_on_with(made: Made, night: Night, tmp_path: Path) -> None:
    """Broken: a Ctrl-C or a reboot would leave less than the damage did."""
    before = night.contents()
    chosen = dict(objects(made))
    keys = [chosen[what].key for what in ("a shard", "weights of the checkpoint", "report of the report")]
    for key in keys:
        flip(night.store, key)
    chance, kills = random.Random(5), 0
    for _ in range(6):
        with (Path(night.home) / "heal.log").open("w") as log:
            command = [sys.executable, "-m", "mlops.commands", "store", "verify", "--heal", "--yes"]
            process = WarmProcess(command, env=night.environment | {"TMPDIR": str(tmp_path)}, output=log)
            time.sleep(chance.uniform(0.2, 3.0))
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait(60)
        for key in keys:
            aside = [key for other in night.store.list("damaged") if other.endswith(key)]
            assert night.store.exists(key) or aside, "nothing is lost"
    assert kills, "some were killed at work"
    night.heal()
    assert night.verify().returncode == 0
    assert night.contents() == before
