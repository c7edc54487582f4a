"""Which runs may judge an experiment, whose code nobody has reviewed: only those in which somebody must say yes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
from airflow.sdk import DAG, Context, Param
from project import REPOSITORY

from mlops_provider.factory import build_dag
from mlops_provider.operators.adopted import PARAM, asked_to_judge
from mlops_provider.operators.approve import ApproveOperator
from mlops_provider.operators.promote import PromoteOperator
from mlops_provider.spec_file import load_pipeline

PLACE = "experiments/ana/flight_ranking/train/20130209T050000Z-1e89fd782e2c"
RANKING = REPOSITORY / "dags/flight_ranking.pipeline.yaml"


def asked(dag: DAG) -> str:
    return asked_to_judge(cast(Context, {"dag": dag, "params": {PARAM: PLACE}}))


def test_a_pipeline_in_which_silence_is_a_yes_takes_no_experiment() -> None:
    """Broken: what somebody had on a laptop would go live while the approvers sleep."""
    assert asked(build_dag(load_pipeline(RANKING))) == PLACE
    agreeing = build_dag(load_pipeline(RANKING, {("promote", "approval", "on_timeout"): "approve"}))
    assert PARAM not in agreeing.params
    assert asked(agreeing) == ""


@pytest.mark.parametrize(
    ("approval", "promotes_first", "judges"),
    [({}, False, True), ({"on_timeout": "approve"}, False, False), ({}, True, False), (None, False, False)],
    ids=["approved", "by nobody's answer", "a promotion beside the approval", "no approval"],
)
def test_a_dag_in_python_is_held_to_the_same(
    approval: Mapping[str, Any] | None, promotes_first: bool, judges: bool
) -> None:
    """Broken: a parameter of that name would be a door, whatever its DAG does with it."""
    with DAG("own", params={PARAM: Param(None, type=["null", "string"])}) as dag:
        version: Any = "{{ version }}"
        if promotes_first:
            PromoteOperator(task_id="early", pipeline="own", version=version, registered_model="m")
        if approval is not None:
            common = {"pipeline": "own", "approvers": ["vera"], "retries": 1, **approval}
            version = ApproveOperator(task_id="approve", version=version, **common).output
        PromoteOperator(task_id="promote", pipeline="own", version=version, registered_model="m")
    assert bool(asked(dag)) is judges
