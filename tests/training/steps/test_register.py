from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from turns import by_turns

from mlops.contract.refs import ModelVersionRef, ReportRef
from mlops.contract.step import Failure

WHOLE = {"MLmodel", "library.zip", "requirements.txt", "data/model/serving.json", "data/model/weights.pt"}


@pytest.fixture
def section(project: Any) -> dict[str, str]:
    return {"registered_model": project.pipeline}


def versions(project: Any) -> list[Any]:
    return MlflowClient(tracking_uri=project.tracking_uri).search_model_versions(f"name = '{project.pipeline}'")


def files_of(source: str, project: Any) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        mlflow.artifacts.download_artifacts(source, dst_path=folder, tracking_uri=project.tracking_uri)
        (root,) = Path(folder).glob("**/MLmodel")
        return {path.relative_to(root.parent).as_posix() for path in root.parent.rglob("*") if path.is_file()}


def test_a_version_leads_back_to_its_data(
    project: Any, run_step: Any, section: dict[str, str], tracked_report: Any
) -> None:
    report = tracked_report()
    ref = run_step(project, project.step_input("register", section, report))
    assert isinstance(ref, ModelVersionRef), ref
    (version,) = versions(project)
    assert ReportRef.from_wire(json.loads(version.tags["mlops.ref"])) == report
    assert version.tags["mlops.dataset_version"] == report.parent.parent.parent.parent.version
    assert version.run_id == report.parent.tracking_run
    client = MlflowClient(tracking_uri=project.tracking_uri)
    found = client.search_model_versions(f"tags.`mlops.dataset_version` = '{version.tags['mlops.dataset_version']}'")
    assert project.pipeline in {entry.name for entry in found}


KILLED = """
import os, signal

from mlflow import MlflowClient
from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository

from mlops.steps.__main__ import main
from mlops.tracking.model_registry import ModelRegistry

original = {call}
calls = []


def killed(self, *args, **kwargs):
    calls.append(1)
    if len(calls) < {count}:
        return original(self, *args, **kwargs)
    if {after}:
        original(self, *args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)


{call} = killed
main()
"""


@pytest.mark.parametrize(
    ("call", "count", "after", "num_versions"),
    by_turns(
        [
            ("MlflowClient.create_logged_model", 1, True, 0),
            ("MlflowArtifactsRepository.log_artifact", 4, False, 0),
            ("MlflowClient.finalize_logged_model", 1, False, 0),
            ("MlflowClient.finalize_logged_model", 1, True, 0),
            ("ModelRegistry.create", 1, True, 1),
            ("ModelRegistry.set_tag", 1, True, 1),
            ("ModelRegistry.set_alias", 1, True, 1),
        ]
    ),
)
def test_killed_and_retried_it_registers_once_and_whole(
    project: Any,
    run_step: Any,
    section: dict[str, str],
    tracked_report: Any,
    call: str,
    count: int,
    after: bool,
    num_versions: int,
) -> None:
    """Broken: a version would be seen whose files are not all there, or a retry would make a second one."""
    document = project.step_input("register", section, tracked_report())
    program = KILLED.format(call=call, count=count, after=after)
    started = project.start(document, program=["-c", program])
    assert started.result() is None
    assert started.process.returncode == -signal.SIGKILL, started.log
    assert len(versions(project)) == num_versions
    for version in versions(project):
        assert files_of(version.source, project) >= WHOLE
    ref = run_step(project, document)
    assert isinstance(ref, ModelVersionRef), ref
    (version,) = versions(project)
    assert ref.version == str(version.version) == "1"
    assert ref.semantic_version == version.tags["mlops.semantic_version"] == "1.0.0"
    assert files_of(version.source, project) >= WHOLE
    client = MlflowClient(tracking_uri=project.tracking_uri)
    assert client.get_registered_model(project.pipeline).aliases == {"staging": "1"}
    assert project.store.folders("models"), "the audit trail"
    assert len(list(project.store.list(f"models/{project.pipeline}/audit"))) == 1
    experiment = client.get_run(ref.parent.parent.tracking_run).info.experiment_id
    assert len(client.search_logged_models([experiment])) == 1, "what was begun is gone on with"


def test_a_report_that_did_not_pass_is_never_registered(
    project: Any, run_step: Any, section: dict[str, str], tracked_report: Any
) -> None:
    report = tracked_report(passed=False, reason="Not better.")
    failure = run_step(project, project.step_input("register", section, report))
    assert isinstance(failure, Failure)
    assert not failure.retryable
    assert "Not better." in failure.message
    assert versions(project) == []


def test_files_that_were_removed_are_stored_again(
    project: Any, run_step: Any, section: dict[str, str], tracked_report: Any
) -> None:
    """Broken: a model that is registered once more after a clean-up would be a version that nobody can load."""
    first = run_step(project, project.step_input("register", section, tracked_report(), "first"))
    assert isinstance(first, ModelVersionRef), first
    (version,) = versions(project)
    get_artifact_repository(version.source, tracking_uri=project.tracking_uri).delete_artifacts()
    again = run_step(project, project.step_input("register", section, tracked_report(reason="Again."), "again"))
    assert isinstance(again, ModelVersionRef), again
    for version in versions(project):
        assert files_of(version.source, project) >= WHOLE
