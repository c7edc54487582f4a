"""Fixtures for every part. The environment of a test is its own: nothing of the user's Airflow is read or written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
# As a launcher sets it: what a test starts, Spark's executors among it, imports the same code.
os.environ["PYTHONPATH"] = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'plugins'}"
# Spark lives for seconds here: compiling it well would take longer than its work.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

LONGEST = (
    "test_reproduce.py", "test_layouts.py", "test_promotion.py", "test_promote.py", "test_evaluate.py", "test_diff.py",
    "test_crashes.py", "test_pod.py", "test_tuning.py", "test_pipeline.py", "test_pods.py", "test_approvals.py",
    "test_spot.py", "test_data_crashes.py", "test_tenants.py", "test_language_model.py", "test_recipes.py",
    "test_daemons.py",
)  # fmt: skip
"""Minutes each. They begin first, so that none goes on alone when all others are done (``--no-loadscope-reorder``)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.fixture
def airflow_environment(tmp_path: Path) -> dict[str, str]:
    """Environment for a fresh process that uses Airflow as a library."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    return kept | {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'plugins'}",
    }
