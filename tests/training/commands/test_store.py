"""``mlops store verify``, as its process, on stores that were damaged in every way that we could think of."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from committed_snapshots import commit_snapshot, visits
from warm import run_warm

from mlops.contract.refs import (
    CheckpointRef,
    DatasetRef,
    FeaturesRef,
    ModelVersionRef,
    ReportRef,
    ValidationRef,
    canonical_json,
)
from mlops.contract.stage_moves import Live, Stages
from mlops.contract.step import python_path
from mlops.registry.audit import AuditTrail, Entry
from mlops.store import Store

CHECKOUT = Path(__file__).parents[3]
NOBODY = "http://127.0.0.1:9"
"""Where no MLflow is."""


def verify(store: Store, *options: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": python_path(CHECKOUT), "MLOPS_HOME": str(CHECKOUT), "MLOPS_STORE": store.uri}
    command = [sys.executable, "-m", "mlops.commands", "store", "verify", *options]
    return run_warm(command, env={**os.environ, **paths, "MLFLOW_TRACKING_URI": NOBODY}, timeout=120)


def damage_of(store: Store, *options: str) -> dict[str, Any]:
    """By key."""
    done = verify(store, "--json", *options)
    assert done.returncode == 1, done.stdout + done.stderr
    return {item["key"]: item for item in json.loads(done.stdout)["damage"]}


def lineage(store: Store, dataset: DatasetRef, name: str = "visits") -> ModelVersionRef:
    """What a night would make of a snapshot, committed; of each artifact the name, as bytes."""

    def made(step: str, *names: str, **contents: bytes) -> dict[str, Any]:
        place = f"pipelines/{name}/{step}/night"
        files = {each: f"{step} {each}".encode() for each in names} | contents
        return {
            "place": place,
            "artifacts": {each: store.put_artifact(place, f"{each}.bin", data) for each, data in files.items()},
        }

    validation = ValidationRef(
        **made("validate", "report", "statistics"), schema_sha256="3" * 64, num_checks=1, parent=dataset
    )
    shard = store.put_artifact(f"pipelines/{name}/features/night", "train-00000.arrow", b"rows")
    shards = {"shards": [{**dataclasses.asdict(shard), "num_rows": 1}]}
    manifest = canonical_json({"splits": {"train": shards}})
    features = FeaturesRef(
        **made("features", "state", manifest=manifest), version="4" * 64, num_features=1, num_samples={"train": 1},
        parent=validation,
    )  # fmt: skip
    checkpoint = CheckpointRef(
        **made("train", "weights", "history"),
        epoch=1,
        metrics={},
        seed=1,
        world_size=1,
        tracking_run="r",
        parent=features,
    )
    report = ReportRef(
        **made("evaluate", "report", "metrics"),
        passed=True,
        reason="Good.",
        metrics={},
        champion=None,
        parent=checkpoint,
    )
    version = ModelVersionRef(
        **made("register", "input"), name=name, version="7", semantic_version="1.0.0", parent=report
    )
    for ref in reversed(list(version.lineage())):
        store.commit(ref)
    return version


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


def flip(store: Store, key: str) -> None:
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))


def test_a_whole_store_is_read_once(store: Store) -> None:
    """Broken: of 30 nights that share their days, each day would be read 30 times."""
    nights = [commit_snapshot(store, visits(*range(1, day + 1)), last_day=day) for day in (3, 4, 5)]
    lineage(store, nights[-1])
    done = verify(store)
    assert (done.returncode, "all is whole: 8 refs" in done.stdout) == (0, True), done.stdout + done.stderr
    said = json.loads(verify(store, "--json").stdout)
    refs = {"ref.json", *(Path(ref.artifacts["manifest"].key).name for ref in nights)}
    read = [
        entry
        for entry in store.stored("")
        if Path(entry.key).name not in refs and "/features/night/manifest" not in entry.key
    ]
    assert said["num_bytes"] == sum(entry.num_bytes for entry in read)
    assert said["damage"] == said["unreadable"] == []


@pytest.mark.server
@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_everything_that_is_damaged_is_named_with_what_it_affects(
    kind: str, store: Store, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Broken: a report, a shard or weights would be found damaged by the one who needs them, years later."""
    if kind == "bucket":
        store = Store(f"{request.getfixturevalue('s3')}/{tmp_path.name}")
    old, new = (commit_snapshot(store, visits(*range(1, day + 1)), last_day=day) for day in (3, 4))
    version = lineage(store, new)
    places = {type(ref): ref.place for ref in version.lineage()}
    shared = json.loads(store.read(old.artifacts["manifest"]))["partitions"][0]["blobs"][0]
    artifacts = {type(ref): ref.artifacts for ref in version.lineage()}
    (shard,) = (key for key in store.list("pipelines/visits/features") if "train-00000" in key)
    flipped = {
        shared["key"]: places | {None: old.place},
        shard: {kind: places[kind] for kind in (FeaturesRef, CheckpointRef, ReportRef, ModelVersionRef)},
        artifacts[CheckpointRef]["weights"].key: {
            kind: places[kind] for kind in (CheckpointRef, ReportRef, ModelVersionRef)
        },
        artifacts[ReportRef]["report"].key: {kind: places[kind] for kind in (ReportRef, ModelVersionRef)},
    }
    for key in flipped:
        flip(store, key)
    gone = artifacts[ValidationRef]["statistics"].key
    cut = f"{places[ReportRef]}/ref.json"
    lost = f"{places[FeaturesRef]}/ref.json"
    store.delete([gone, lost])
    store.put(cut, store.get(cut)[:-100])

    found = damage_of(store)

    assert found.keys() == {*flipped, gone, cut, lost}
    for key, affected in flipped.items():
        assert found[key]["problem"] == "damaged"
        assert found[key]["refs"] == sorted(affected.values()), key
        assert found[key]["found"] == store.sha256(key)[0] != found[key]["expected"]
    assert found[shared["key"]]["expected"] == shared["sha256"]
    assert (found[gone]["problem"], found[gone]["found"]) == ("missing", None)
    assert (found[lost]["problem"], "no ref" in found[cut]["detail"]) == ("missing", True)
    assert places[ModelVersionRef] in found[lost]["refs"], "though the ref between them is gone"
    for each in found.values():
        assert each["versions"] == [{"model": "visits", "version": "7", "stage": None, "champion": None}]
    done = verify(store)
    assert "stages of model versions are unknown: MLflow at" in done.stdout
    assert "visits/7 (stage unknown)" in done.stdout
    assert f"{gone} is missing; expected SHA-256 {artifacts[ValidationRef]['statistics'].sha256}" in done.stdout


def test_a_manifest_that_is_damaged_leaves_what_it_names_unknown(store: Store) -> None:
    """Broken: what nobody could look at would pass for whole."""
    dataset = commit_snapshot(store, visits(1), last_day=1)
    flip(store, dataset.artifacts["manifest"].key)
    (found,) = damage_of(store).values()
    assert (found["key"], found["expected"]) == (
        dataset.artifacts["manifest"].key,
        dataset.artifacts["manifest"].sha256,
    )
    assert found["hides"]
    assert "what it names is unknown, and was not looked at" in verify(store).stdout


def test_a_ref_that_was_changed_is_found_by_what_was_made_of_it(store: Store) -> None:
    """Broken: who may write the store could give a model another past."""
    version = lineage(store, commit_snapshot(store, visits(1), last_day=1))
    report = version.parent
    forged = dataclasses.replace(report, metrics={"auc": 0.99})
    store.put(f"{report.place}/ref.json", json.dumps(forged.to_wire()).encode())
    (found,) = damage_of(store).values()
    assert (found["expected"], found["found"]) == (report.digest(), forged.digest())
    assert found["versions"]


def test_one_pipeline_can_be_asked_for(store: Store) -> None:
    lineage(store, commit_snapshot(store, visits(1), last_day=1))
    other = lineage(store, commit_snapshot(store, visits(2), last_day=2, name="other"), name="other")
    flip(store, other.parent.artifacts["report"].key)
    assert verify(store, "--pipeline", "visits").returncode == 0
    assert damage_of(store, "--pipeline", "other").keys() == {other.parent.artifacts["report"].key}
    unknown = verify(store, "--pipeline", "visit")
    assert (unknown.returncode, "it holds other, visits" in unknown.stderr) == (2, True)


def test_what_the_store_does_not_give_is_not_called_whole(store: Store, tmp_path: Path) -> None:
    """Broken: a disk that cannot be read would be taken for one that is in order, or one object end it all."""
    dataset = commit_snapshot(store, visits(1, 2), last_day=2)
    blob = json.loads(store.read(dataset.artifacts["manifest"]))["partitions"][0]["blobs"][0]["key"]
    path = tmp_path / "store" / blob
    path.unlink()
    path.symlink_to(path)
    done = verify(store)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"cannot read {blob}" in done.stdout
    assert "all is whole" not in done.stdout


def entry(number: int, previous: str | None) -> Entry:
    return Entry(
        number=number, at="2024-01-01T00:00:00", model="visits", version="7", action="promote", from_stage=None,
        to_stage="production", former_champion=None, who="vera", why="good", report=None, approver=None,
        previous=previous, stages=Stages(live={"7": Live(stage="production", since="")}),
    )  # fmt: skip


def cut_last(store: Store, numbers: Callable[[int], str]) -> str:
    store.delete([numbers(3)])
    return numbers(3)


def edit(store: Store, key: str) -> str:
    store.put(key, store.get(key).replace(b'"vera"', b'"otto"'))
    return key


@pytest.mark.parametrize(
    "strike",
    [
        pytest.param(lambda store, key: edit(store, key(2)), id="an entry is edited"),
        pytest.param(lambda store, key: edit(store, key(3)), id="the newest entry is edited"),
        pytest.param(cut_last, id="the newest entry is cut off"),
        pytest.param(lambda store, key: store.put(key(1), b"{") or key(1), id="an entry is no JSON"),
        pytest.param(lambda store, key: store.put(key(0), b"0" * 64) or key(0), id="a marker is another"),
    ],
)
def test_an_audit_trail_is_read_with_the_rest(store: Store, strike: Any) -> None:
    lineage(store, commit_snapshot(store, visits(1), last_day=1))
    trail, previous = AuditTrail(store, "visits"), None
    for number in (1, 2, 3):
        made = entry(number, previous)
        assert trail.append(made)
        trail.mark_applied(made)
        previous = trail.read(number).digest
    assert verify(store).returncode == 0
    keys = {0: "models/visits/applied/000000000002"}
    key = strike(store, lambda number: keys.get(number, f"models/visits/audit/{number:012}.json"))
    (found,) = damage_of(store).values()
    assert (found["key"], found["model"]) == (key, "visits")


def test_healing_asks_first(store: Store) -> None:
    """Broken: a script that only looks would change the store."""
    version = lineage(store, commit_snapshot(store, visits(1), last_day=1))
    store.delete([f"{version.parent.place}/ref.json"])
    before = {entry.key: entry.num_bytes for entry in store.stored("")}
    done = verify(store, "--heal")
    assert (done.returncode, "say --yes" in done.stderr) == (2, True)
    assert "to do: write it as 1 refs that were made of it hold it" in done.stdout
    assert {entry.key: entry.num_bytes for entry in store.stored("")} == before


def test_a_ref_is_made_again_from_what_was_made_of_it(store: Store) -> None:
    """Broken: one bit in ref.json would take a model's whole way back along."""
    version = lineage(store, commit_snapshot(store, visits(1), last_day=1))
    keys = [f"{ref.place}/ref.json" for ref in version.lineage()]
    whole = {key: store.get(key) for key in keys}
    store.delete([keys[2]])
    for key in (keys[1], keys[3], keys[-1]):
        store.put(key, whole[key][:40])
    done = verify(store, "--heal", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {key: store.get(key) for key in keys} == whole
    assert sorted(Path(key).name for key in store.list("damaged")) == ["ref.json"] * 3, "what was damaged is kept"
    assert verify(store).returncode == 0

    store.put(keys[0], b"{")
    hopeless = verify(store, "--heal", "--yes")
    assert hopeless.returncode == 1
    assert "cannot be made again: nothing was made of it: restore it from a backup" in hopeless.stdout
    assert store.get(keys[0]) == b"{"


def test_equal_bytes_elsewhere_are_taken(store: Store) -> None:
    """Broken: a recipe's code, of which each night has a copy, would be asked from a backup."""
    dataset = commit_snapshot(store, visits(1), last_day=1)
    lineage(store, dataset)
    other = lineage(store, dataset, name="other")
    lost = {ref.artifacts["report"].key for ref in other.lineage() if "report" in ref.artifacts}
    for key in lost:
        flip(store, key)
    done = verify(store, "--heal", "--yes")
    assert (done.returncode, done.stdout.count("which has the same bytes")) == (0, 2), done.stdout + done.stderr
    assert verify(store).returncode == 0
    assert len(list(store.list("damaged"))) == 2
