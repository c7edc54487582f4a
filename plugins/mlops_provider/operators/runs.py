"""What an operator reads from the run of its DAG."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from mlops.contract.grain import Grain, Periods
from mlops.contract.refs import Artifact
from mlops.contract.section import SpecError
from mlops.contract.step import RunIdentity
from mlops_provider.operators.adopted import asked_to_judge, weights_to_judge

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.execution_time.context import TaskStateStoreAccessor


TERMINAL: Final = "terminal__"
"""Begins the id of a run that Airflow does not know, for it is one of ``mlops run``."""
WAITING_FOR: Final = "waiting_for"
"""In a task's state, which Airflow shows: the service that it waits for just now, and what was wrong with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SentRecipes:
    """Recipes that somebody has sent with an experiment, in place of those of the project."""

    home: Path
    """The project with them, for as long as the run goes on."""
    recipes: Mapping[str, Artifact]
    """As they lie in the store, by the recipe's folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a run asks of a step, beside the settings of its operator."""

    upstream: Any
    """The ref that the step takes, in its JSON form; None for the first step."""
    interval: tuple[datetime, datetime]
    """The data interval, in UTC."""
    run_id: str
    dag_id: str = ""
    """Of the run, where it is not that of the operator."""
    try_number: int = 1
    user: str = ""
    """Who started the run by hand; empty where the schedule did."""
    experiment: str = ""
    """See :class:`mlops.contract.step.RunIdentity`."""
    adopts: str = ""
    """Likewise."""
    weights: Mapping[str, Any] | None = None
    """That were trained elsewhere, where the run is to judge some: a :class:`JudgedWeights`."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Of the run: those of the DAG, and what the run was triggered with instead."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What the run was triggered with."""
    sent: SentRecipes | None = None
    """None: the project's recipes count."""
    state: TaskStateStoreAccessor | None = None
    """Of the task, kept over its tries; None outside of Airflow."""

    @classmethod
    def of(cls, context: Context, upstream: Any) -> Self:
        """By a run of Airflow."""
        run = context["dag_run"]
        return cls(
            upstream=upstream,
            interval=_data_interval(context),
            run_id=context["run_id"],
            try_number=context["ti"].try_number,
            user=run.triggering_user_name or "",
            adopts=asked_to_judge(context),
            weights=weights_to_judge(context),
            params=context["params"],
            given=run.conf or {},
            state=context["task_state_store"],
        )

    def project(self, home: Path) -> Path:
        """Return the project whose recipes count: the deployment's, or the one with those that were sent."""
        return home if self.sent is None else self.sent.home

    def identity(self, pipeline: str, key: str, timezone: str, dag_id: str, task_id: str) -> RunIdentity:
        """Return which run a step belongs to. For the parameters see :class:`mlops.contract.step.RunIdentity`."""
        start, end = self.interval
        return RunIdentity(
            pipeline=pipeline,
            run_key=key,
            interval_start=start.isoformat(),
            interval_end=end.isoformat(),
            timezone=timezone,
            dag_id=dag_id,
            task_id=task_id,
            run_id=self.run_id,
            try_number=self.try_number,
            user=self.user,
            experiment=self.experiment,
            adopts=self.adopts,
        )


def waiting_shown(context: Context) -> Callable[[str | None], None]:
    """Return what puts a sentence where Airflow shows it at the task; None takes it away."""

    def show(what: str | None) -> None:
        state = context["task_state_store"]
        state.delete(WAITING_FOR) if what is None else state.set(WAITING_FOR, what)

    return show


def _data_interval(context: Context) -> tuple[datetime, datetime]:
    """
    The data interval of the run, in UTC. A run without one works as of the last midnight in the DAG's timezone, or the
    last whole hour where its data comes in hours.
    """
    run = context["dag_run"]
    if run.data_interval_start is not None and run.data_interval_end is not None:
        return run.data_interval_start.astimezone(UTC), run.data_interval_end.astimezone(UTC)
    dag = context["dag"]
    ingests: list[Any] = [task for task in dag.tasks if getattr(task, "step", None) == "ingest"]
    grains = {task.settings["grain"] for task in ingests}
    return interval_before(run.run_after, str(dag.timezone), "hour" if grains == {"hour"} else "day")


def interval_before(instant: datetime, timezone: str, grain: Grain) -> tuple[datetime, datetime]:
    """The last hour, or the last day of a timezone, that was over at an instant; in UTC."""
    periods = Periods("hour" if grain == "hour" else "day", timezone)
    number = periods.at(instant)
    return periods.start(number - 1), periods.start(number)


def recipe_folder(import_path: str) -> str:
    """
    ``include.flight_ranking.model:build_model`` -> ``include/flight_ranking``: the folder whose code counts.

    The whole recipe, as :func:`mlops.code.recipe_folder` stores it, also where the module lies deeper in it: modules
    of a recipe import each other.
    """
    return str(Path(*import_path.partition(":")[0].split(".")[:-1][:2]))


def refuse_others(given: Mapping[str, Any], params: Iterable[str]) -> None:
    """:raises SpecError: naming the first parameter of a triggered run that the pipeline does not have"""
    known = sorted(params)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise SpecError(f"the run was triggered with {name!r}, which is no parameter of this pipeline: {meant}")
