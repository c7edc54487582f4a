"""What the task of an experiment takes from its run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from project import REPOSITORY

from mlops.contract.section import SpecError
from mlops_provider.exceptions import StepFailedError
from mlops_provider.experiments.asked import Experiment
from mlops_provider.experiments.dags import build_experiments_dag, parameters
from mlops_provider.spec_file import load_pipeline

FILE = REPOSITORY / "tests/fixtures/events/events.pipeline.yaml"
NOW = datetime(2024, 1, 10, 9, tzinfo=UTC)


class TakenError(SpecError):
    """The task knows what it is to do."""


def asked_as_of(monkeypatch: pytest.MonkeyPatch, conf: dict[str, Any]) -> datetime:
    """The time by which the task's data are chosen, of a run that Airflow begins as of :data:`NOW`."""
    taken: list[datetime] = []

    def of(path: Path, request: object, person: str, now: datetime) -> Experiment:
        taken.append(now)
        raise TakenError("that is all")

    monkeypatch.setattr(Experiment, "of", of)
    pipeline = load_pipeline(FILE)
    operator = build_experiments_dag(pipeline, FILE).get_task("experiment")
    defaults = {name: param.value for name, param in parameters(pipeline).items()}
    run = SimpleNamespace(triggering_user_name="ana", run_after=NOW, conf=conf)
    task = SimpleNamespace(xcom_push=lambda **_: None)
    try:
        operator.execute({"dag_run": run, "params": defaults | conf, "ti": task})
    except StepFailedError as error:
        if not isinstance(error.__cause__, TakenError):
            raise
    return taken[0]


def test_a_run_is_of_the_data_of_when_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: one that was put before others is of older data, or is told that its own time is yet to come."""
    assert asked_as_of(monkeypatch, {}) == NOW
    later = NOW + timedelta(hours=30)
    assert asked_as_of(monkeypatch, {"asked_at": later.isoformat()}) == later
    for wrong, said in ((datetime.now(UTC) + timedelta(days=1), "yet to come"), ("soon", "write it as")):
        with pytest.raises(StepFailedError, match=said):
            asked_as_of(monkeypatch, {"asked_at": str(wrong)})


def test_a_whole_pipeline_counts_by_the_file_that_it_was_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: what differs from one file is tried out with another one."""
    with pytest.raises(StepFailedError, match="has been changed since a whole pipeline was sent"):
        asked_as_of(monkeypatch, {"steps_sha256": "0" * 64})
