"""What came out of an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.sdk.configuration import conf

from mlops.contract.refs import CheckpointRef, Ref, ReportRef
from mlops.contract.results import ExperimentResult, Spread, TrainingResult, of_candidate
from mlops_provider.deployment import Deployment
from mlops_provider.experiments.asked import Experiment
from mlops_provider.links import report_url, run_url


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training of an experiment, and its evaluation where there is one."""

    checkpoint: CheckpointRef
    report: ReportRef | None

    @property
    def metrics(self) -> Mapping[str, float]:
        """Those of the evaluation; or else of the validation, of the best epoch."""
        if self.report is None:
            return {f"validation {name}": value for name, value in self.checkpoint.metrics.items()}
        return of_candidate(self.report.metrics)

    def result(self, deployment: Deployment, in_airflow: bool) -> TrainingResult:
        """
        What came out of it, for programs.

        :param in_airflow: see :func:`address`
        """
        trained = TrainingResult(
            seed=self.checkpoint.seed,
            checkpoint=self.checkpoint.place,
            epoch=self.checkpoint.epoch,
            tracking_run=self.checkpoint.tracking_run,
            tracking=run_url(deployment, self.checkpoint.tracking_run),
            validation=dict(self.checkpoint.metrics),
        )
        if (report := self.report) is None:
            return trained
        page = report.artifacts.get("report")
        return trained.model_copy(
            update={
                "metrics": dict(report.metrics),
                "passed": report.passed,
                "reason": report.reason,
                "champion": report.champion,
                "evaluation": report.place,
                "report": None if page is None else address(deployment, page.key, in_airflow),
            }
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """What the steps have made that were asked for."""

    prepared: Ref
    """By the last step before the training."""
    trainings: Sequence[Training]

    def over_seeds(self) -> dict[str, Spread]:
        """How each metric varies over several trainings."""
        return {name: Spread.of([each.metrics[name] for each in self.trainings]) for name in self.trainings[0].metrics}

    def document(self, experiment: Experiment, deployment: Deployment, in_airflow: bool = False) -> dict[str, Any]:
        """
        An :class:`mlops.contract.results.ExperimentResult`, as JSON.

        :param in_airflow: see :func:`address`
        """
        result = ExperimentResult(
            experiment=experiment.place,
            interval=experiment.interval,
            last=None if self.trainings else self.prepared.to_wire(),
            trainings=[each.result(deployment, in_airflow) for each in self.trainings],
            over_seeds={} if len(self.trainings) < 2 else self.over_seeds(),
        )
        return result.model_dump(mode="json")


def address(deployment: Deployment, key: str, in_airflow: bool = False) -> str:
    """
    The address of a report: of its file, or of Airflow's page.

    :param in_airflow: who reads it need not be at this machine; else the page is for a store that is no folder here
    """
    airflow = conf.get("api", "base_url", fallback="").rstrip("/")
    if not in_airflow and (deployment.store.startswith("file://") or not airflow):
        return f"{deployment.store}/{key}"
    return f"{airflow}{report_url(key)}"
