"""``/models/{name}/diff`` over a store with two trainings."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from rest_world import NAME, World

from mlops.contract.manifest import Blob, Manifest, Partition
from mlops.contract.refs import Artifact, CheckpointRef, FeaturesRef, ReportRef, StudyRef, ValidationRef
from mlops.contract.step import RunIdentity, StepInput
from mlops_provider.api import differences
from mlops_provider.registry import PIPELINE_TAG, REF_TAG, Registry

FEATURES = f"include.{NAME}.features:FEATURES"
DIFF = f"/models/{NAME}/diff"
ENVIRONMENT = {
    "git_commit": "c0ffee", "changed_files": [], "library": "1" * 64, "packages": {"numpy": "2.3.0"}, "world_size": 1,
}  # fmt: skip
RUN = RunIdentity(
    pipeline=NAME, run_key="k", interval_start="2013-02-01T00:00:00+00:00", interval_end="2013-02-08T00:00:00+00:00",
    dag_id=NAME, run_id="night", task_id="train", try_number=1, timezone="UTC",
)  # fmt: skip


class Versions:
    """As :class:`mlops_provider.registry.Registry`."""

    def __init__(self, reports: Mapping[int, ReportRef]) -> None:
        self._reports = reports

    async def model(self, name: str) -> dict[str, Any]:
        return {"aliases": [{"alias": "champion", "version": "1"}]}

    async def versions(self, model: str, most: int, below: int | None = None) -> list[dict[str, Any]]:
        return [
            {
                "name": NAME, "version": str(number), "creation_timestamp": 1,
                "tags": [{"key": PIPELINE_TAG, "value": NAME}, {"key": REF_TAG, "value": json.dumps(ref.to_wire())}],
            }
            for number, ref in sorted(self._reports.items(), reverse=True)
            if below is None or number < below
        ][:most]  # fmt: skip


class Trained:
    """Trainings in a store."""

    def __init__(self, store: Path) -> None:
        self._store = store

    def write(self, key: str, data: bytes) -> Artifact:
        path = self._store / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return Artifact(key=key, sha256=hashlib.sha256(data).hexdigest(), num_bytes=len(data))

    def train(
        self, place: str, *, rate: float, rows: int, files: Mapping[str, bytes], commit: str = "c0ffee"
    ) -> ReportRef:
        zipped = io.BytesIO()
        with zipfile.ZipFile(zipped, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        code = self.write(f"{place}/code.zip", zipped.getvalue())
        manifest = _manifest(rows)
        dataset = manifest.ref(f"{place}/ingest", self.write(f"{place}/manifest.json", manifest.to_json()))
        state = self.write(f"{place}/state", str(rows).encode())
        features = FeaturesRef(
            place=f"{place}/features",
            artifacts={
                "input": self._input(f"{place}/f.json", "features", {"feature_set": FEATURES}),
                "code": code,
                "state": state,
            },
            version=state.sha256,
            num_features=4,
            num_samples={"train": rows},
            parent=ValidationRef(place=f"{place}/validate", schema_sha256="3" * 64, num_checks=1, parent=dataset),
        )
        study = StudyRef(
            place=f"{place}/tune", name="s", trials={"complete": 1}, best_trial=0, best_value=rate,
            parameters={"optimizer.learning_rate": rate}, tracking_run="def", parent=features,
        )  # fmt: skip
        settings = {"model": f"include.{NAME}.model:build_model", "optimizer": {"learning_rate": 1.0}, "seed": 1}
        checkpoint = CheckpointRef(
            place=f"{place}/train",
            artifacts={
                "input": self._input(f"{place}/t.json", "train", settings),
                "code": code,
                "environment": self.write(
                    f"{place}/environment.json", json.dumps(ENVIRONMENT | {"git_commit": commit}).encode()
                ),
            },
            epoch=2,
            metrics={"ndcg@10": rate},
            seed=1,
            world_size=1,
            tracking_run="abc",
            parent=study,
        )
        return ReportRef(
            place=f"{place}/evaluate", passed=True, reason="better", metrics={"candidate.ndcg@10": rate}, champion=None,
            parent=checkpoint,
        )  # fmt: skip

    def _input(self, key: str, step: str, config: Mapping[str, Any]) -> Artifact:
        return self.write(key, StepInput(step=step, run=RUN, config=config).dump().encode())


def _manifest(rows: int) -> Manifest:
    blob = Blob(key=f"objects/{rows}", sha256=f"{rows:064}", num_bytes=8, num_rows=rows)
    return Manifest(
        name=NAME, interval_start=RUN.interval_start, interval_end=RUN.interval_end, timezone="UTC", grain="day",
        window=("2013-02-07",), event_time="at", schema={"at": "Datetime", "x": "Int64"}, schema_hash="2" * 64,
        partitions=(Partition(period="2013-02-07", num_rows=rows, num_bytes=8, blobs=(blob,)),), split={},
        split_hash="4" * 64, splits={}, calendar={}, expected=(), sources={}, creator={}, engine="polars",
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def reports(world: World, store: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, ReportRef]:
    trained = Trained(store)
    found = {
        1: trained.train("a", rate=0.1, rows=100, files={"model.py": b"x = 1\n", "same.py": b"", "w.bin": b"\0\1"}),
        2: trained.train(
            "b", rate=0.2, rows=120, commit="beef",
            files={"model.py": b"x = 2\n", "same.py": b"", "w.bin": b"\0\2", "__init__.py": b""},
        ),
    }  # fmt: skip

    @asynccontextmanager
    async def opened(*_: Any) -> AsyncIterator[Versions]:
        yield Versions(found)

    monkeypatch.setattr(Registry, "open", opened)
    asked_before = world.answer
    monkeypatch.setattr(world, "answer", lambda request: _dag(request) or asked_before(request))
    _reads_code(monkeypatch, may=True)
    return found


def _dag(request: httpx.Request) -> httpx.Response | None:
    return httpx.Response(200, json={"dag_id": NAME}) if request.url.path == f"/api/v2/dags/{NAME}" else None


def _reads_code(monkeypatch: pytest.MonkeyPatch, *, may: bool) -> None:
    monkeypatch.setattr(differences, "rights", lambda *_: lambda dag_id, what: (dag_id, what) == (NAME, "CODE") and may)


def test_two_versions_are_told_apart(world: World, reports: dict[int, ReportRef]) -> None:
    """Broken: who wonders why the newest model is worse reads two lineages side by side."""
    status, found = world.ask("GET", f"{DIFF}?before=1&after=2")
    assert status == 200, found
    assert (found["before"], found["after"]) == ("1", "2")
    parts = {part["name"]: part for part in found["parts"]}
    told = {
        name: {each["what"]: (each["before"], each["after"]) for each in part["differences"]}
        for name, part in parts.items()
    }
    assert list(told) == ["data", "code", "environment", "parameters", "metrics"]
    assert told["data"]["rows of 2013-02-07"] == ("100", "120")
    assert told["code"] == {"commit": ("c0ffee", "beef")}
    assert told["parameters"] == {"train.optimizer.learning_rate": ("0.1", "0.2")}, "as the search has found it"
    assert told["metrics"]["test candidate.ndcg@10"] == ("0.1", "0.2")
    assert parts["environment"]["is_equal"]
    assert parts["environment"]["said"] == "lock files, 1 packages, hardware class, 1 processes"
    patch = parts["code"]["patch"].splitlines()
    assert patch[0] == f"include/{NAME}/__init__.py is empty, and only in {NAME}/2"
    assert {"-x = 1", "+x = 2", f"include/{NAME}/w.bin differs: 2 and 2 bytes"} <= set(patch)
    assert not [line for line in patch if "same.py" in line]


def test_beside_what_is_in_production_unless_told_otherwise(world: World, reports: dict[int, ReportRef]) -> None:
    status, found = world.ask("GET", f"{DIFF}?before=2")
    assert (status, found["before"], found["after"]) == (200, "2", "1")
    status, found = world.ask("GET", f"{DIFF}?before=champion&after=1")
    assert status == 200
    assert all(part["is_equal"] and not part["differences"] and not part["patch"] for part in found["parts"])


def test_code_is_for_those_who_may_read_it(
    world: World, reports: dict[int, ReportRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a viewer whom Airflow does not let read a DAG's code would read the recipe's."""
    _reads_code(monkeypatch, may=False)
    status, found = world.ask("GET", f"{DIFF}?before=1&after=2")
    assert status == 200
    (patch,) = [part["patch"] for part in found["parts"] if part["patch"]]
    assert patch == "Files of the recipe differ. Who may read the DAG's code in Airflow sees how.\n"
    assert "x = 2" not in json.dumps(found)


def test_a_version_whose_training_is_damaged_is_named(world: World, reports: dict[int, ReportRef], store: Path) -> None:
    (store / "b/environment.json").write_text("{}")
    assert world.ask("GET", f"{DIFF}?before=1&after=2") == (
        500, "b/environment.json is damaged or gone: mlops store verify says what it affects",
    )  # fmt: skip
    assert world.ask("GET", f"{DIFF}?before=1&after=7")[0] == 404
    reports[1].parent.artifacts.pop("environment")
    status, said = world.ask("GET", f"{DIFF}?before=1&after=1")
    assert (status, said[:22]) == (409, "a/train holds no envir")
