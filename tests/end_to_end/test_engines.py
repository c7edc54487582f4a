"""The same pipeline on Polars and, by one line more, on a real local Spark: the same snapshot, the same shards."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from project import make_project
from turns import on_turn

from mlops.contract.refs import DatasetRef, FeaturesRef, Ref, ValidationRef
from mlops.contract.step import STEPS, Failure, RunIdentity, StepInput, run_key
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import Launch
from mlops_provider.launchers.process import ProcessLauncher
from mlops_provider.spec import SECTIONS
from mlops_provider.spec_file import load_pipeline


@dataclass
class Night:
    """The first steps of the events pipeline on one engine, each in its process as an operator would launch it."""

    home: Path
    engine: str
    lines: list[str] = field(default_factory=list)

    def run(self, step: str, ref: Ref | None) -> Ref | Failure | None:
        pipeline = load_pipeline(self.home / "dags/events.pipeline.yaml")
        config = getattr(pipeline, "validate_" if step == "validate" else step).model_dump(mode="json")
        assert set(config) == set(SECTIONS[step].model_fields)
        deployment = Deployment(
            home=self.home,
            store=f"file://{self.home}/store",
            tracking_uri="http://127.0.0.1:1",
            tracking_url="http://127.0.0.1:1",
            pythons={name: self.home / f".venv/{name}/bin/python" for name in ("training", "validation")},
        )
        end = "2024-01-15T00:00:00+00:00"
        identity = RunIdentity(
            pipeline="events", run_key=run_key(step, end, "UTC", config, ref, code=""),
            interval_start="2024-01-14T00:00:00+00:00", interval_end=end, timezone="UTC", dag_id="events", task_id=step,
            run_id=self.engine, try_number=1,
        )  # fmt: skip
        document = StepInput(step=step, run=identity, config=config, ref=ref)
        launch = Launch(input=document, runtime=STEPS[step].runtime)
        return ProcessLauncher(deployment).run(launch, self.lines.append).result

    def features(self) -> FeaturesRef:
        ref: Ref | None = None
        for step in ("ingest", "validate", "features"):
            result = self.run(step, ref)
            assert isinstance(result, Ref), (result, self.lines)
            ref = result
        assert isinstance(ref, FeaturesRef)
        return ref

    def read(self, key: str) -> bytes:
        return (self.home / "store" / key).read_bytes()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_project(tmp_path / "home")


def set_engine(home: Path, engine: str) -> None:
    path = home / "dags/events.pipeline.yaml"
    path.write_text(path.read_text().replace("\n  window: 7\n", f"\n  window: 7\n  engine: {engine}\n"))


@on_turn(1, 2)
@pytest.mark.gang
def test_spark_makes_the_same_snapshot_and_shards(home: Path) -> None:
    """Otherwise one line of the pipeline would change what the model learns."""
    on_polars = Night(home, "polars")
    expected = on_polars.features()
    set_engine(home, "spark")
    on_spark = Night(home, "spark")
    found = on_spark.features()

    refs = [expected.ancestor(DatasetRef), found.ancestor(DatasetRef)]
    snapshots = [json.loads(on_spark.read(ref.artifacts["manifest"].key)) for ref in refs]
    assert [snapshot["engine"] for snapshot in snapshots] == ["polars", "spark"]
    assert snapshots[0]["partitions"] == snapshots[1]["partitions"]
    assert refs[0].version == refs[1].version
    assert found.ancestor(ValidationRef).num_checks == expected.ancestor(ValidationRef).num_checks
    assert on_spark.read(found.artifacts["state"].key) == on_spark.read(expected.artifacts["state"].key)
    shards = [shards_of(on_spark, ref) for ref in (expected, found)]
    assert shards[0] == shards[1]
    assert sorted(shards[0]) == ["test", "train", "validation"]
    assert all(shards[0].values())
    # What a person reads in the task's log is about the step, not about Java.
    assert [line for line in on_spark.lines if "spark" in line.lower() or "WARN" in line or "\tat " in line] == []
    assert [p for p in psutil.process_iter() if p.name() == "java" and str(home) in p.cwd()] == []


def shards_of(night: Night, ref: FeaturesRef) -> dict[str, list[str]]:
    """Digests of each split's shards."""
    manifest = json.loads(night.read(ref.artifacts["manifest"].key))
    return {name: [shard["sha256"] for shard in split["shards"]] for name, split in manifest["splits"].items()}


@on_turn(1, 2)
@pytest.mark.gang
def test_a_mistake_in_the_recipe_reads_as_on_polars(home: Path) -> None:
    """Otherwise whoever runs on Spark would have to read Java to find a misspelt column."""
    recipe = home / "include/events/dataset.py"
    recipe.write_text(recipe.read_text().replace('nw.col("at")', 'nw.col("att")'))
    set_engine(home, "spark")

    result = Night(home, "spark").run("ingest", None)

    assert isinstance(result, Failure)
    assert (result.type, result.retryable) == ("BadDataError", False)
    assert "asks for a missing column" in result.message
    assert "events has at, query, item, price, rating, relevance" in result.message
    assert "py4j" not in result.message
