"""The language model's recipe on the standard library of the Python that runs the tests."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from collector import Collector
from live_airflow import LiveAirflow
from project import REPOSITORY
from turns import on_turn

from mlops.contract.refs import DatasetRef, FeaturesRef, ModelVersionRef

NIGHT_SECONDS = 600
PIPELINE = "stdlib_lm"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def airflow(new_airflow: Callable[..., LiveAirflow], collector: Collector) -> LiveAirflow:
    """With the recipe, made for another Python's library, and a model that is trained within seconds."""
    airflow = new_airflow(settings=collector.environment)
    home = airflow.home
    shutil.copytree(REPOSITORY / "include" / PIPELINE, home / "include" / PIPELINE)
    subprocess.run(
        ["make", "--silent", "--file", REPOSITORY / "Makefile", "data/stdlib/.ready", f"PYTHON={sys.executable}"],
        cwd=home, check=True,
    )  # fmt: skip
    text = (REPOSITORY / f"dags/{PIPELINE}.pipeline.yaml").read_text()
    for old, new in {
        r"sha256: \w+": f"sha256: {'f' * 64}",
        r"model_args: .*": "model_args: {width: 32, num_blocks: 1, num_heads: 2}",
        r"epochs: \d+": "epochs: 1",
    }.items():
        text, count = re.subn(old, new, text)
        assert count == 1, old
    pipeline_file(home).write_text(text)
    return airflow


def pipeline_file(home: Path) -> Path:
    return home / f"dags/{PIPELINE}.pipeline.yaml"


@on_turn(1, 2)
@pytest.mark.timeout(1200)
def test_the_library_becomes_a_model(airflow: LiveAirflow, collector: Collector) -> None:
    """
    Broken: text could not be had by the same operators; a model of another Python's library would pass for it; or who
    watches by OpenTelemetry would not see what Airflow's own metrics cannot tell.
    """
    refused = airflow.trigger(10, PIPELINE)
    assert airflow.client.wait(PIPELINE, refused, NIGHT_SECONDS) == "failed"
    message = airflow.client.xcom(PIPELINE, refused, "ingest", "failure")["message"]
    assert f"ingest.sources.library.sha256 is {'f' * 64}, and theirs is " in message
    digest = message.partition("theirs is ")[2][:64]
    path = pipeline_file(airflow.home)
    path.write_text(path.read_text().replace("f" * 64, digest))

    night = airflow.trigger(11, PIPELINE)
    assert airflow.client.wait(PIPELINE, night, NIGHT_SECONDS) == "success", airflow.states(night, PIPELINE)
    assert set(airflow.states(night, PIPELINE).values()) == {"success"}
    version = ModelVersionRef.from_wire(airflow.client.xcom(PIPELINE, night, "register"))
    assert version.parent.parent.world_size == 2
    assert 2 < version.parent.metrics["perplexity"] < 40, "of 257 tokens"
    assert version.ancestor(FeaturesRef).num_samples["train"] > 1000
    told = {each.name.removeprefix("airflow.mlops."): each for each in collector.ours()}
    assert told["step.failures"].tags == {
        "pipeline": PIPELINE, "step": "ingest", "error": "BadDataError", "for_good": "true"
    }  # fmt: skip
    assert told["snapshot.rows"].value == version.ancestor(DatasetRef).num_rows
    assert told["evaluation.value"].value == version.parent.metrics["perplexity"]
    assert (told["production.version"].value, told["production.version"].tags["model"]) == (1, version.name)
