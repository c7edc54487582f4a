"""What the processes of a step that is run once more are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlops.reproduction.processes import Processes
from mlops.reproduction.workplace import Workplace
from mlops.store import Store


def test_code_of_a_recipe_does_not_get_the_login_of_who_reproduces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a model that is made again could put another one into production."""
    workplace = Workplace(home=tmp_path, library=tmp_path, said="")
    store = Store(f"file://{tmp_path}/store")
    reruns = Processes(store=store, tracking_uri="http://mlflow", workplace=workplace, scratch=tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "release")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "of-release")
    assert "of-release" in reruns._environment(tmp_path, None).values(), "of an MLflow where all steps have one login"
    monkeypatch.setenv("MLOPS_STEPS_USERNAME", "steps")
    monkeypatch.setenv("MLOPS_STEPS_PASSWORD", "of-steps")
    environment = reruns._environment(tmp_path, None)
    assert (environment["MLFLOW_TRACKING_USERNAME"], environment["MLFLOW_TRACKING_PASSWORD"]) == ("steps", "of-steps")
    assert "of-release" not in environment.values()
