from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from mlflow import MlflowClient

from mlops_provider.refs import ModelVersionRef, ReportRef
from mlops_provider.step import Failure


@pytest.fixture
def section(project: Any) -> dict[str, str]:
    return {"registered_model": project.pipeline}


def versions(project: Any) -> list[Any]:
    return MlflowClient(tracking_uri=project.tracking_uri).search_model_versions(f"name = '{project.pipeline}'")


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


KILLED_AFTER = """
import os, signal, sys

from training.steps.__main__ import main
from training.tracking.model_registry import ModelRegistry

original = ModelRegistry.{call}


def killed(self, *args, **kwargs):
    original(self, *args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)


ModelRegistry.{call} = killed
main()
"""


@pytest.mark.parametrize("call", ["create", "set_alias"])
def test_killed_after_a_change_and_retried_it_registers_once(
    project: Any, run_step: Any, section: dict[str, str], tracked_report: Any, call: str
) -> None:
    """Broken: a retry after a kill would register the model a second time, or leave it without its alias."""
    document = project.step_input("register", section, tracked_report())
    started = project.start(document, program=["-c", KILLED_AFTER.format(call=call)])
    assert started.result() is None
    assert started.process.returncode == -signal.SIGKILL, started.log
    assert len(versions(project)) == 1, "killed before it did anything"
    ref = run_step(project, document)
    assert isinstance(ref, ModelVersionRef), ref
    (version,) = versions(project)
    assert ref.version == str(version.version) == "1"
    client = MlflowClient(tracking_uri=project.tracking_uri)
    assert client.get_registered_model(project.pipeline).aliases == {"staging": "1"}
    assert project.store.folders("models"), "the audit trail"
    assert len(list(project.store.list(f"models/{project.pipeline}/audit"))) == 1


def test_a_report_that_did_not_pass_is_never_registered(
    project: Any, run_step: Any, section: dict[str, str], tracked_report: Any
) -> None:
    report = tracked_report(passed=False, reason="Not better.")
    failure = run_step(project, project.step_input("register", section, report))
    assert isinstance(failure, Failure)
    assert not failure.retryable
    assert "Not better." in failure.message
    assert versions(project) == []
