"""Fixtures for every part. The environment of a test is its own: nothing of the user's Airflow is read or written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from suites.hooks import SuiteHooks

from mlops.contract.step import python_path

REPOSITORY = Path(__file__).parents[1]
# As a launcher sets it: what a test starts, Spark's executors among it, imports the same code.
PATH = f"{python_path(REPOSITORY)}{os.pathsep}{REPOSITORY / 'plugins'}"
os.environ["PYTHONPATH"] = PATH
# Spark lives for seconds here: compiling it well would take longer than its work.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "server: starts a server, of Airflow, MLflow, a database, a store, or a browser")
    config.addinivalue_line("markers", "gang: starts a step's processes, one or several")
    config.pluginmanager.register(SuiteHooks(config))


@pytest.fixture
def airflow_environment(tmp_path: Path) -> dict[str, str]:
    """Environment for a fresh process that uses Airflow as a library."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    return kept | {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
        "PYTHONPATH": PATH,
    }
