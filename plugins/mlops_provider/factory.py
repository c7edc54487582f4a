"""From a pipeline's spec to its DAG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, Param
from airflow.sdk.configuration import conf
from airflow.sdk.definitions.deadline import DeadlineAlert
from airflow.timetables.interval import CronDataIntervalTimetable

from mlops.contract.learners import TORCH
from mlops_provider.deployment import all_teams, owner_of_file
from mlops_provider.incidents import Incident, incident_of
from mlops_provider.lateness import deadline
from mlops_provider.messages import action_of, message_of, tell_all
from mlops_provider.notify_spec import Event, Notify
from mlops_provider.operator_keys import OPERATIONS_TAG, PIPELINE_TAG, ROLLBACK
from mlops_provider.operators.adopted import PARAM, WEIGHTS
from mlops_provider.operators.approve import ApproveOperator
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.canary import CanaryOperator
from mlops_provider.operators.evaluate import EvaluateOperator
from mlops_provider.operators.features import FeaturesOperator
from mlops_provider.operators.ingest import IngestOperator
from mlops_provider.operators.promote import PromoteOperator
from mlops_provider.operators.register import RegisterOperator
from mlops_provider.operators.rollback import RollbackOperator
from mlops_provider.operators.train import TrainOperator
from mlops_provider.operators.tune import TuneOperator
from mlops_provider.operators.validate import ValidateOperator
from mlops_provider.spec import SECTIONS, Pipeline
from mlops_provider.spec_file import load_pipeline, pipeline_files

if TYPE_CHECKING:
    from airflow.sdk import Context

_FIELDS: Mapping[str, str] = {
    step: field
    for field, step in ((field, info.alias or field) for field, info in Pipeline.model_fields.items())
    if step in SECTIONS
}
"""Of the pipeline, by step."""
PARAMETERS: Mapping[str, tuple[str, ...]] = {"ingest": ("window",), "train": ("learning_rate", "epochs", "seed")}
"""Settings that the trigger form offers to override for one run, by step."""


def build_dag(pipeline: Pipeline) -> DAG:
    """The DAG of one pipeline: its steps in a line."""
    zone = ZoneInfo(pipeline.timezone)
    parameters = PARAMETERS
    if pipeline.train.learner != TORCH:
        # The rate of other learners is among their own settings.
        parameters = {**PARAMETERS, "train": tuple(name for name in PARAMETERS["train"] if name != "learning_rate")}
    dag = DAG(
        dag_id=pipeline.pipeline,
        description=pipeline.description,
        schedule=CronDataIntervalTimetable(pipeline.schedule, timezone=pipeline.timezone)
        if pipeline.schedule
        else None,
        start_date=pipeline.start,
        end_date=datetime.combine(pipeline.end_date, datetime.min.time(), zone) if pipeline.end_date else None,
        catchup=False,
        # One night at a time: a night is judged against the champion that the night before left behind.
        max_active_runs=1,
        default_args=pipeline.default_args(),
        deadline=_deadline(pipeline),
        # Airflow would take it from the `with` below, also where a task could not be made, and run the part before it.
        auto_register=False,
        tags=[PIPELINE_TAG, *pipeline.tags],
        params={
            name: _param(pipeline, step, name)
            for step, names in parameters.items()
            for name in names
            # What a search finds goes before what is given.
            if not (step == "train" and pipeline.tune and name in pipeline.tune.space)
        }
        | _judged(pipeline),
    )
    settings = {
        step: pipeline.model_dump(include={field: True}, by_alias=False)[field] for step, field in _FIELDS.items()
    }

    def task(task_id: str, step: str) -> dict[str, Any]:
        common = {
            "team": pipeline.team,
            "launcher": pipeline.launcher,
            "launcher_settings": pipeline.launcher_settings_of(step),
            "notify": pipeline.notify,
        }
        return {"task_id": task_id, "pods": pipeline.pods_of(step), **common}

    def common(step: str) -> dict[str, Any]:
        asked = parameters.get(step, ())
        if step == "tune":
            # The training's, as they are called in a search for its settings.
            asked = tuple(f"train.{name}" for name in parameters["train"])
        return {**task(step, step), "parameters": asked, **settings[step]}

    model = pipeline.register_.registered_model

    def named(task_id: str) -> dict[str, Any]:
        return {**task(task_id, "promote"), "registered_model": model}

    with dag:
        told = pipeline.model_dump(mode="json", by_alias=True, include=set(_FIELDS.values()))
        ingest = IngestOperator(**common("ingest"), sections=told, only_parameters=True)
        validate = ValidateOperator(dataset=ingest.output, registered_model=model, **common("validate"))
        features = FeaturesOperator(validation=validate.output, **common("features"))
        best: StepOperator = features
        if pipeline.tune is not None:
            best = TuneOperator(
                features=features.output,
                train=settings["train"],
                trial_pods=pipeline.pods_of("train"),
                trial_launcher_settings=pipeline.launcher_settings_of("train"),
                **common("tune"),
            )
        train = TrainOperator(features=best.output, **common("train"))
        evaluate = EvaluateOperator(checkpoint=train.output, **common("evaluate"))
        version = RegisterOperator(report=evaluate.output, **common("register")).output
        if approval := settings["promote"]["approval"]:
            version = ApproveOperator(version=version, **named("approve"), **approval).output
        if canary := settings["promote"]["canary"]:
            version = CanaryOperator(version=version, **named("canary"), **canary).output
        PromoteOperator(version=version, registered_model=model, **common("promote"))
    return dag


def _deadline(pipeline: Pipeline) -> list[DeadlineAlert]:
    if all(entry.hours_until_late(pipeline.deadline_hours) is None for entry in pipeline.notify):
        return []
    return deadline(pipeline.deadline_hours, pipeline.notify, pipeline.pipeline)


def _judged(pipeline: Pipeline) -> dict[str, Param]:
    """The parameters by which a run judges what it has not trained: where somebody must approve, for nobody has yet."""
    approval = pipeline.promote.approval
    if approval is None or approval.on_timeout == "approve":
        return {}
    text = "Train nothing: judge a training of an experiment, given by its place (mlops register)"
    others = 'Train nothing: judge weights that were trained elsewhere, as {"path": "s3://models/taxi.pt"}'
    return {
        PARAM: Param(None, type=["null", "string"], description=text),
        WEIGHTS: Param(None, type=["null", "object"], description=others),
    }


def build_rollback_dags(file: Path) -> dict[str, DAG]:
    """
    The DAGs that take a champion back, by id: ``rollback`` of the deployment's own models, and one for each team.

    :param file: of the DAGs. Where a team's bundle has one, it makes that team's only.
    """
    teams = all_teams()
    if (owner := owner_of_file(teams, file)) is not None:
        return _by_id([_rollback_dag(owner, teams[owner].names, file.parent)])
    # Under [core] multi_team, a DAG of the deployment's own bundle is no team's.
    others = [] if conf.getboolean("core", "multi_team", fallback=False) else [*teams]
    prefixes: dict[str | None, str] = {None: ""} | {team: teams[team].names for team in others}
    return _by_id(_rollback_dag(team, names, file.parent) for team, names in prefixes.items())


def _rollback_dag(team: str | None, names: str, folder: Path) -> DAG:
    with DAG(
        dag_id=f"{names}{ROLLBACK}",
        description="Put the former champion of a model into production again",
        schedule=None,
        catchup=False,
        is_paused_upon_creation=False,  # who needs it is in a hurry
        max_active_runs=1,
        tags=[PIPELINE_TAG, OPERATIONS_TAG],
        params={
            "model": Param(
                type="string",
                minLength=1,
                description=f"Registered model, e.g. {names}flight_ranking",
            ),
            "why": Param(type="string", minLength=1, description="For the audit trail"),
            "champion": Param(
                None,
                type=["null", "string"],
                description="Version to take back: nothing happens where another one is in production by then; "
                "the one that is in production when the run is asked for, if empty",
            ),
        },
    ) as dag:
        RollbackOperator(
            task_id=ROLLBACK,
            team=team,
            model="{{ params.model }}",
            why="{{ params.why }}",
            champion="{{ params.champion or '' }}",
            on_success_callback=TellOwners(folder, "rolled_back"),
            on_failure_callback=TellOwners(folder, "failed"),
        )
    return dag


class TellOwners:
    """
    A callback of the rollback: tells those of it whom the pipelines of the model name.

    :param folder: of the pipelines' files, and of folders with more; they are read when it is called
    :param event: what has happened then
    """

    def __init__(self, folder: Path, event: Event) -> None:
        self.folder = folder
        self.event = event

    def __call__(self, context: Context) -> None:
        task: Any = context["task"]
        # Not task.model: for a process that was lost Airflow calls this with a task that was never rendered.
        model = context["params"]["model"]
        message, action = message_of(self.event, context), action_of(self.event, context)
        incident = incident_of(self.event, context, message, action=action)
        told: list[tuple[Sequence[Notify], Incident]] = []
        for path in pipeline_files(self.folder):
            try:
                pipeline = load_pipeline(path)
            except Exception as error:  # whatever is wrong with one of them, the others are told
                task.log.warning("Whom %s names is not told: %s", path.name, error)
                continue
            if pipeline.register_.registered_model == model:
                told.append((pipeline.notify, replace(incident, pipeline=pipeline.pipeline)))
        tell_all(told, task.log)


def _by_id(dags: Iterable[DAG]) -> dict[str, DAG]:
    return {dag.dag_id: dag for dag in dags}


def _param(pipeline: Pipeline, step: str, name: str) -> Param:
    section = getattr(pipeline, step)
    schema = _json_schema(step)["properties"][name]
    left_out = {"default"}
    if name == "epochs" and pipeline.train.initialise is None:  # there are no weights to take, and nothing to say of it
        schema, left_out = {**schema, "minimum": 1}, {"default", "description"}
    return Param(getattr(section, name), **{key: value for key, value in schema.items() if key not in left_out})


@cache
def _json_schema(step: str) -> dict[str, Any]:
    # Making it takes longer than reading a pipeline's file, and it is the same for all of them.
    return SECTIONS[step].model_json_schema()
