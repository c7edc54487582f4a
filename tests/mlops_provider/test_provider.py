"""The provider as Airflow meets it: metadata, DAG files, import weight."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import airflow
import jsonschema
import pytest

from mlops_provider.get_provider_info import get_provider_info

REPOSITORY = Path(__file__).parents[2]
HEAVY = ("torch", "mlflow", "pandas", "polars", "tensorflow", "kubernetes")


def test_no_file_of_the_packages_is_longer_than_400_lines() -> None:
    """Broken: a file grows until it is about two things."""
    files = [*(REPOSITORY / "plugins").rglob("*.py"), *(REPOSITORY / "training").rglob("*.py")]
    lengths = {str(file.relative_to(REPOSITORY)): len(file.read_text().splitlines()) for file in files}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_provider_info_fits_airflows_schema() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_parsing_all_dags_loads_nothing_heavy(airflow_environment: dict[str, str]) -> None:
    """Each task parses its DAG file again: a heavy import there would be paid hundreds of times a night."""
    script = f"""
import sys, json
from airflow.dag_processing.dagbag import DagBag
bag = DagBag({str(REPOSITORY / "dags")!r})
print(json.dumps({{"dags": sorted(bag.dags), "errors": bag.import_errors,
                   "heavy": [name for name in {HEAVY!r} if name in sys.modules]}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=airflow_environment, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["errors"] == {}
    assert found["dags"] == [
        "digits",
        "digits.experiments",
        "flight_arrival",
        "flight_arrival.experiments",
        "flight_delays",
        "flight_ranking",
        "flight_ranking.experiments",
        "ranking_published",
        "rollback",
        "stdlib_lm",
        "stdlib_lm.experiments",
    ]
    assert found["heavy"] == []


def test_the_plugin_waits_with_what_only_the_api_server_needs(airflow_environment: dict[str, str]) -> None:
    """Broken: each task's process, which loads the plugins, would take a second of processor time for nothing."""
    script = """
import sys
import airflow.plugins_manager
before = set(sys.modules)
import mlops_provider.plugin
print(*(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=airflow_environment, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "mlops_provider.turns" in loaded
    assert not loaded & {"fastapi", "httpx", "mlops_provider.api.app", "mlops_provider.reports", "pydantic"}


@pytest.mark.parametrize("live", [{}, {"FLIGHT_DELAYS_LIVE_METRICS": "http://live.example.com/{version}"}])
def test_a_recipe_has_a_canary_where_something_serves(
    airflow_environment: dict[str, str], live: dict[str, str]
) -> None:
    """Broken: it would wait for metrics that nobody has, or go into production unwatched."""
    script = f"""
from airflow.dag_processing.dagbag import DagBag
bag = DagBag({str(REPOSITORY / "dags/flight_delays.py")!r})
print(*(task.task_id for task in bag.dags["flight_delays"].topological_sort()))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=airflow_environment | live, capture_output=True, text=True, check=True
    )
    line = ["tune_trial", "tune", "train", "evaluate", "register", "approve", *(["canary"] if live else []), "promote"]
    assert done.stdout.splitlines()[-1].split() == ["ingest", "validate", "features", *line]


def test_contract_imports_pydantic_and_the_standard_library_only() -> None:
    """All three runtimes import it; anything else that it imports would be lacking in one of them."""
    script = """
import importlib, pkgutil, sys
import pydantic
before = set(sys.modules)
import mlops.contract
for module in pkgutil.walk_packages(mlops.contract.__path__, "mlops.contract."):
    importlib.import_module(module.name)
extra = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(*sorted(extra - {"_sysconfigdata__linux_x86_64-linux-gnu"}))
"""
    path = str(REPOSITORY / "training")
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert {"mlops"} < set(done.stdout.split()) <= {"mlops", "pydantic", "annotated_types", "typing_inspection"}


def dag_folder(folder: Path) -> tuple[Path, str]:
    """A folder with the files that make DAGs of pipelines, and a pipeline to write there."""
    dags = folder / "dags"
    dags.mkdir()
    for name in ("pipelines.py", "pipeline_errors.py"):
        (dags / name).write_text((REPOSITORY / "dags" / name).read_text())
    return dags, (REPOSITORY / "tests/fixtures/pipelines/flight_ranking.pipeline.yaml").read_text()


def dag_bag(dags: Path, environment: dict) -> dict:
    """``dags``, by their ids, and ``errors``, by their files, as Airflow finds them in a process of its own."""
    script = f"""
import json
from airflow.dag_processing.dagbag import DagBag
bag = DagBag({str(dags)!r})
print(json.dumps({{"dags": sorted(bag.dags), "errors": bag.import_errors}}))
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_broken_yaml_is_an_import_error_and_spares_the_others(tmp_path: Path, airflow_environment: dict) -> None:
    """One team's typo must not stop everyone's pipelines."""
    dags, good = dag_folder(tmp_path)
    (dags / "flight_ranking.pipeline.yaml").write_text(good)
    (dags / "one.pipeline.yaml").write_text(good.replace("pipeline: flight_ranking", "pipeline: one").replace(
        "epochs: 3", "epochs: none"))  # fmt: skip
    (dags / "two.pipeline.yaml").write_text("pipeline: two\nfoo: ]")
    found = dag_bag(dags, airflow_environment)
    assert found["dags"] == ["flight_ranking", "flight_ranking.experiments"]
    ((file, message),) = found["errors"].items()
    assert file.endswith("pipeline_errors.py"), "Airflow takes every DAG of the named file out of service"
    assert "one.pipeline.yaml:34:11: train.epochs must be a valid integer" in message
    assert "two.pipeline.yaml:2:6: not valid YAML" in message


def test_a_file_that_makes_no_dag_spares_the_others(tmp_path: Path, airflow_environment: dict) -> None:
    """Broken: a link to nowhere, or one tag that is too long, stops every pipeline of the folder."""
    dags, good = dag_folder(tmp_path)
    long = "n" * 239

    def write(name: str, old: str = "", new: str = "") -> None:
        text = good.replace("pipeline: flight_ranking", f"pipeline: {name}", 1).replace(old, new, 1)
        (dags / f"{name}.pipeline.yaml").write_text(text)

    write("flight_ranking")
    write("tagged", "[ranking]", f"[ranking, {'t' * 101}]")
    write(long)
    write("binary", "Rank the", "Rank\x01the")
    write("odd", "owner:", "? [a]\n: 1\nowner:")
    (dags / "gone.pipeline.yaml").symlink_to(tmp_path / "nowhere")
    (dags / "folder.pipeline.yaml").mkdir()
    (dags / ".#flight_ranking.pipeline.yaml").symlink_to("ana@laptop.1234:1")  # as Emacs locks a file
    found = dag_bag(dags, airflow_environment)
    assert found["dags"] == ["flight_ranking", "flight_ranking.experiments"]
    ((file, message),) = found["errors"].items()
    assert file.endswith("pipeline_errors.py")
    assert "flight_ranking.pipeline.yaml" not in message, "a hidden file is no pipeline"
    for said in (
        "tagged.pipeline.yaml:4:17: tags.1 must be 100 characters long at most, as Airflow stores it, and is 101, got",
        f"{long}.pipeline.yaml:1:11: pipeline must be 238 characters long at most, and is 239: Airflow takes 250 of a",
        "binary.pipeline.yaml:1:1: not valid YAML: control characters are not allowed, at byte",
        "odd.pipeline.yaml:1:1: no pipeline can be made of it: TypeError(",
        "gone.pipeline.yaml:1:1: it cannot be read (No such file or directory): put a file there that Airflow's user",
        "folder.pipeline.yaml:1:1: it cannot be read (Is a directory): put a file there that",
    ):
        assert said in message
