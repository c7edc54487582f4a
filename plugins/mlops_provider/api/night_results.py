"""What a pipeline's own run has trained and how it was judged, by the evaluations that its tasks have returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlops.contract.results import ExperimentResult, TrainingResult
from mlops_provider.api.airflow import Airflow, xcom
from mlops_provider.api.deployments import of_name
from mlops_provider.api.evaluations import evaluation_of, interval_of
from mlops_provider.experiments.results import Training
from mlops_provider.operator_keys import EVALUATES


async def judged(
    run: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], airflow: Airflow
) -> ExperimentResult | None:
    """
    Return what came out of a pipeline's own run so far, in the form that experiments have.

    :param tasks: of the run, as Airflow's API has them
    :return: None where no evaluation has ended, or where the asker may not read what it returned
    """
    reports = []
    for task in tasks:
        if task["operator_name"] == EVALUATES and task["state"] == "success":
            report = evaluation_of(await xcom(run, task["task_id"], "return_value", airflow, task["map_index"]))
            reports += [] if report is None else [report]
    if not reports:
        return None
    deployment = await of_name(run["dag_id"], lambda deployment: deployment)
    try:
        found = [Training(checkpoint=each.parent, report=each).result(deployment, in_airflow=True) for each in reports]
        return ExperimentResult(
            experiment=reports[0].place.rsplit("/", 2)[0],
            interval=interval_of(reports[0]),
            last=None,
            # Once more: who edits an XCom can put anything into an evaluation.
            trainings=[TrainingResult.model_validate(each.model_dump(warnings=False)) for each in found],
        )
    except (ValueError, TypeError, AttributeError):
        return None
