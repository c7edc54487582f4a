"""The metrics of trainings over their steps, as MLflow has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mlops.contract.rest import MOST_POINTS, TrainingProgress
from mlops_provider.gathering import gather
from mlops_provider.mlflow_rest import MlflowReader, check, document_of, field_of
from mlops_provider.progress import pairs_of, progress_of

_MISSING: Final = "RESOURCE_DOES_NOT_EXIST"
RUNNING: Final = "RUNNING"
_AT_ONCE: Final = 8
_PAGE: Final = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracked:
    """A run of MLflow: a training, a trial, or a search."""

    run_id: str
    name: str
    latest: Mapping[str, int]
    """The newest step of each metric."""
    place: str
    """Of the training in the store; empty where it has none there."""
    progress: TrainingProgress | None
    """How far it is; None where it has ended, or does not say how long it is."""


class CurveName(NamedTuple):
    run_id: str
    metric: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A value of a metric."""

    curve: CurveName
    training: str
    """Name of the run."""
    step: int
    value: float
    unix_milliseconds: int


class Tracking(MlflowReader):
    """Reads what a deployment's MLflow has of trainings."""

    purpose = "steps"

    async def runs_of(self, experiment: str, dag_id: str, run_id: str) -> list[Tracked]:
        """
        Find what was tracked of a run of Airflow, the oldest first.

        :param experiment: of MLflow
        :raises MlflowError: where MLflow cannot be reached, or refuses
        """
        experiment_id = await self.experiment(experiment)
        if experiment_id is None:
            return []
        body: dict[str, Any] = {
            "experiment_ids": [experiment_id],
            "filter": f"tags.`mlops.airflow.dag_id` = '{dag_id}' and tags.`mlops.airflow.run_id` = '{run_id}'",
            "order_by": ["attributes.start_time"],
            "max_results": _PAGE,
        }
        runs: list[Tracked] = []
        while True:
            page = await self._ask("POST", "runs/search", json=body)
            runs += map(_tracked, page.get("runs", []))
            if not (token := page.get("next_page_token")):
                return runs
            body["page_token"] = token

    async def under_way(self, experiment_ids: Sequence[str]) -> list[Mapping[str, Any]]:
        """
        Find the newest runs that have not ended, as MLflow answers them; some of them may have been left so.

        :raises MlflowError: where MLflow cannot be reached, or refuses
        """
        body = {
            "experiment_ids": list(experiment_ids),
            "filter": f"attributes.status = '{RUNNING}'",
            "order_by": ["attributes.start_time DESC"],
            "max_results": _PAGE,
        }
        found: list[Mapping[str, Any]] = (await self._ask("POST", "runs/search", json=body)).get("runs", [])
        return found

    async def experiment(self, name: str) -> str | None:
        """Find the id of an experiment by its name; None where there is none."""
        found = await self._get("experiments/get-by-name", "experiment", experiment_name=name)
        return None if found is None else str(found["experiment_id"])

    async def run(self, run_id: str) -> Tracked | None:
        """Find one by its id."""
        found = await self._get("runs/get", "run", run_id=run_id)
        return None if found is None else _tracked(found)

    async def points(
        self,
        runs: Sequence[Tracked],
        after: Mapping[CurveName, int],
        metrics: Sequence[str] = (),
        most: int = MOST_POINTS,
    ) -> list[Point]:
        """
        Read curves, or their newest parts.

        :param after: the step up to which each is known
        :param metrics: their names; empty: all
        :param most: points of each; of more some in between are left out
        :return: by run and metric, each by steps
        """

        async def curve(wanted: tuple[Tracked, str, int]) -> list[Point]:
            run, metric, first = wanted
            params = {
                "run_ids": run.run_id, "metric_key": metric, "start_step": first, "end_step": run.latest[metric],
                "max_results": most,
            }  # fmt: skip
            page = await self._ask("GET", "metrics/get-history-bulk-interval", params=params)
            return [
                Point(
                    curve=CurveName(run.run_id, metric),
                    training=run.name,
                    step=int(each.get("step", 0)),
                    value=float(each["value"]),
                    unix_milliseconds=int(each["timestamp"]),
                )
                for each in page.get("metrics", [])
            ]

        wanted = [
            (run, metric, first)
            for run in runs
            for metric, latest in sorted(run.latest.items())
            if not metrics or metric in metrics
            if (first := after.get(CurveName(run.run_id, metric), -1) + 1) <= latest
        ]
        return [point for found in await gather(curve, wanted, _AT_ONCE) for point in found]

    async def _get(self, path: str, field: str, **query: str) -> dict[str, Any] | None:
        response = await self._send("GET", path, params=query)
        if document_of(response).get("error_code") == _MISSING:
            return None
        check(response, self._uri, self.purpose)
        return field_of(response, field, self._uri)


def _tracked(run: Mapping[str, Any]) -> Tracked:
    info = run["info"]
    latest = {each["key"]: int(each.get("step", 0)) for each in run.get("data", {}).get("metrics", [])}
    return Tracked(
        run_id=info["run_id"],
        name=info.get("run_name", ""),
        latest=latest,
        place=pairs_of(run, "tags").get("mlops.place", ""),
        progress=progress_of(run) if info.get("status") == RUNNING else None,
    )
