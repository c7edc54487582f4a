from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock
from zoneinfo import ZoneInfo

import pytest
from airflow.sdk.definitions._internal.contextmanager import DagContext

from mlops_provider import factory
from mlops_provider.factory import build_dag
from mlops_provider.spec_file import load_pipeline

REPOSITORY = Path(__file__).parents[2]
PIPELINE = REPOSITORY / "tests/fixtures/pipelines/flight_ranking.pipeline.yaml"


def test_steps_stand_in_one_line() -> None:
    dag = build_dag(load_pipeline(PIPELINE))
    steps = ["ingest", "validate", "features", "train", "evaluate", "register", "promote"]
    assert [task.task_id for task in dag.topological_sort()] == steps
    assert all(dag.get_task(b).upstream_task_ids == {a} for a, b in pairwise(steps))


def test_approval_and_canary_stand_before_promote(tmp_path: Path) -> None:
    path = tmp_path / PIPELINE.name
    path.write_text(f"""{PIPELINE.read_text()}
promote:
  approval: {{approvers: [vera]}}
  canary: {{minutes: 30, source: {{kind: http, url: "http://live/{{version}}"}}, passes: [error_rate < 0.01]}}
""")
    dag = build_dag(load_pipeline(path))
    line = ["register", "approve", "canary", "promote"]
    assert [task.task_id for task in dag.topological_sort()][5:] == line
    assert all(dag.get_task(b).upstream_task_ids == {a} for a, b in pairwise(line))
    assert dag.get_task("approve").settings == {
            "approvers": ["vera"], "minimum": 1, "separation": True, "timeout_hours": 24.0, "on_timeout": "reject",
        }  # fmt: skip


def test_trigger_form_offers_the_parameters_with_their_limits() -> None:
    """The form refuses what the run would refuse an hour later."""
    params = build_dag(load_pipeline(PIPELINE)).params
    assert {name: params[name] for name in params} == {
        "window": 30,
        "learning_rate": 0.0003,
        "epochs": 3,
        "seed": 2013,
    }
    assert params.get_param("epochs").schema["minimum"] == 1
    assert "description" not in params.get_param("epochs").schema, "what 0 would do, where it is refused"
    assert params.get_param("learning_rate").schema["exclusiveMinimum"] == 0


def test_only_where_somebody_approves_a_run_may_judge_an_experiment() -> None:
    """Broken: code that nobody has reviewed would go live by itself."""
    assert "judged_experiment" not in build_dag(load_pipeline(PIPELINE)).params
    assert "judged_experiment" in build_dag(load_pipeline(REPOSITORY / "dags/flight_ranking.pipeline.yaml")).params


@pytest.mark.parametrize("path", sorted(REPOSITORY.glob("dags/*.pipeline.yaml")), ids=lambda path: path.name)
def test_each_recipe_is_a_dag(path: Path) -> None:
    dag = build_dag(load_pipeline(path))
    assert f"{dag.dag_id}.pipeline.yaml" == path.name
    assert [task.task_id for task in dag.roots] == ["ingest"]
    assert [task.task_id for task in dag.leaves] == ["promote"]


def test_every_setting_reaches_its_step() -> None:
    pipeline = load_pipeline(PIPELINE)
    dag = build_dag(pipeline)
    assert dag.get_task("train").settings == pipeline.train.model_dump(mode="json")
    assert dag.get_task("ingest").settings == pipeline.ingest.model_dump(mode="json")


def test_the_data_interval_is_the_local_day_before() -> None:
    dag = build_dag(load_pipeline(PIPELINE))
    zone = ZoneInfo("America/New_York")
    interval = dag.timetable.infer_manual_data_interval(run_after=datetime(2013, 2, 9, tzinfo=zone))
    assert interval.start == datetime(2013, 2, 8, tzinfo=zone)
    assert interval.end == datetime(2013, 2, 9, tzinfo=zone)


def test_a_dag_whose_tasks_cannot_all_be_made_is_not_run_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: Airflow runs the tasks before the one that could not be made, and calls the night a success."""
    monkeypatch.setattr(DagContext, "current_autoregister_module_name", __name__)
    monkeypatch.setattr(DagContext, "autoregistered_dags", set())
    monkeypatch.setattr(factory, "EvaluateOperator", Mock(side_effect=ValueError("no")))
    with pytest.raises(ValueError, match="no"):
        build_dag(load_pipeline(PIPELINE))
    assert not DagContext.autoregistered_dags
