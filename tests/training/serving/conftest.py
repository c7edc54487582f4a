from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ref_fixtures import version_ref  # noqa: F401, a fixture of these tests

from mlops.contract.refs import CheckpointRef, ReportRef, digest_of
from mlops.contract.step import Failure, StepError
from mlops.tracking.connection import connect
from mlops.tracking.model_registry import ModelRegistry


@pytest.fixture
def register(project: Any, run_step: Any, asked: Any) -> Any:
    """Has a checkpoint's model asked for rows, and registers it as if its evaluation had passed."""

    def run(checkpoint: CheckpointRef, reason: str = "Good.") -> Any:
        registry = ModelRegistry(client=connect(project.tracking_uri), name=project.pipeline)
        champion = registry.version_of_alias("champion")
        try:
            artifacts = asked(checkpoint)
        except StepError as error:
            return Failure.of(error)
        report = ReportRef(
            place=f"evaluate/{checkpoint.digest()[:12]}-{champion}-{digest_of(reason)[:6]}",
            artifacts=artifacts,
            passed=True,
            reason=reason,
            metrics={},
            champion=champion,
            parent=checkpoint,
        )
        section = {"registered_model": project.pipeline}
        return run_step(project, project.step_input("register", section, report, report.digest()[:12]))

    return run


@pytest.fixture
def elsewhere(project: Any, tmp_path: Path) -> Any:
    """Runs Python on a machine that has the installed packages, an MLflow server, and none of our files."""

    def run(code: str, *arguments: str) -> str:
        folder = tmp_path / "elsewhere"
        folder.mkdir(exist_ok=True)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MLOPS", "MLFLOW"))
        } | {"MLFLOW_TRACKING_URI": project.tracking_uri, "TMPDIR": str(folder)}
        done = subprocess.run(
            [sys.executable, "-I", "-c", code, *arguments],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
