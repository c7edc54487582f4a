"""
Requests as other platforms have them, for programs that speak so already. Each is translated into a request of
``/runs``, which checks it and does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import httpx
from fastapi import APIRouter, Header, Response
from fastapi.sse import EventSourceResponse
from pydantic import BaseModel, Field, field_validator, model_validator

from mlops.contract.refs import VERSION_PATTERN
from mlops.contract.rest import (
    FITTING,
    Asked,
    ClaimedMetrics,
    GivenArtifact,
    NewRun,
    NewStudy,
    Restored,
    Run,
    RunSummary,
    Settings,
    StartedRun,
)
from mlops.contract.section import DIGEST_PATTERN, LABEL_PATTERN, NAME_PATTERN, SpecError
from mlops.contract.stages import STAGING
from mlops_provider.api.airflow import AirflowDep
from mlops_provider.api.checkpoints import restore_epoch
from mlops_provider.api.metrics import stream
from mlops_provider.api.other_words import (
    dimension_of,
    keys_of,
    metric_of,
    named,
    resource_fields,
    resource_settings,
    source_settings,
    training_fields,
    training_settings,
)
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.api.registration import judge_artifact
from mlops_provider.api.runs import run
from mlops_provider.api.started import ANSWERED, ReleaseDep
from mlops_provider.api.submission import Submission, SubmissionDep, Translated, made
from mlops_provider.deployment import Deployment
from mlops_provider.experiments.names import dag_id_of
from mlops_provider.spec_file import changed_pipeline

router = APIRouter(tags=["other forms"], responses=DOCUMENTED)

PipelineName = Annotated[str, Field(pattern=NAME_PATTERN)]
Learner = Annotated[
    str, Field(min_length=1, description="What trains: `torch`, `lightgbm`, `sklearn` or another learner")
]


class Resources(Asked):
    """Of each pod of the training, where the steps run as pods."""

    gpus: int | None = Field(default=None, strict=True, ge=0, description="A process of torch for each of them")
    cpu: str | int | float | None = None
    memory: str | int | None = Field(default=None, examples=["64Gi"])

    def asked(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class PipelineConfig(Asked):
    """What is not as the pipeline's file says."""

    data_source: str | None = Field(
        default=None,
        min_length=1,
        description="What the pipeline's one source of files reads; a folder ends with `/`, and its files are named as "
        "those of the pipeline. It must lie below one of the deployment's `experiment_sources`",
    )
    model_type: Learner | None = None
    hyperparams: Settings = Field(default={}, description="By the learner's names, or `lr`, `depth` and the like")
    resources: Resources = Resources()


class DatasetName(BaseModel):
    """A snapshot: a DatasetRef, of which more than these may be given."""

    name: PipelineName
    version: str = Field(pattern=VERSION_PATTERN)

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            name, _, version = value.partition("@")
            return {"name": name, "version": version}
        return value


class OfData(Asked):
    """Of which data a run is."""

    as_of: str | None = Field(default=None, description="As of `POST /runs`", examples=["2013-02-09"])
    dataset: DatasetName | None = Field(
        default=None, description="In place of `as_of`: a DatasetRef, or `NAME@VERSION`", examples=["digits@4f1f0c"]
    )

    def data(self, pipeline: str) -> dict[str, str | None]:
        """
        Return the same, as ``POST /runs`` has it.

        :raises SpecError: where the dataset is another pipeline's
        """
        if self.dataset is not None and self.dataset.name != pipeline:
            raise SpecError(
                f"dataset.name {self.dataset.name}: the model is of {pipeline}, which learns from snapshots of its own"
            )
        return {"as_of": self.as_of, "dataset": None if self.dataset is None else self.dataset.version}


class PipelineRun(OfData):
    """A run of a pipeline."""

    pipeline_id: PipelineName
    config: PipelineConfig = PipelineConfig()


class ModelConfig(Asked):
    """The model that is trained."""

    pipeline: PipelineName | None = Field(default=None, description="The dataset's, if not given")
    type: Learner | None = None
    args: Settings = Field(default={}, description="Of `build_model`, where torch trains")


class TrainingRun(OfData):
    """A training."""

    model: ModelConfig = ModelConfig()
    hyperparameters: Settings = Field(default={})
    resources: Resources = Resources()


class Objective(Asked):
    """What is searched for."""

    metric: str
    direction: Literal["maximize", "minimize"] | None = Field(
        default=None, description="The metric's own, if not given"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        return {"metric": value} if isinstance(value, str) else value


class Search(OfData):
    """A search for hyperparameters."""

    pipeline: PipelineName
    search_space: Annotated[dict[str, dict[str, Any] | list[Any]], FITTING] = Field(
        min_length=1,
        description="By hyperparameter: a range, by `low` and `high` or `min` and `max`; or choices, also as a list",
        examples=[{"lr": {"type": "loguniform", "min": 0.0001, "max": 0.01}, "hidden": [32, 64]}],
    )
    objective: Objective | None = Field(default=None, description="Or the metric's name; the pipeline's, if not given")
    n_trials: int | None = Field(default=None, strict=True, ge=1)
    sampler: str | None = None


class NamedRun(RunSummary):
    """A run, with its names in the addresses of these requests."""

    run_id: str
    experiment_id: str


_ASKED_BEFORE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": NamedRun, "description": "It was asked for before"}
}


_OF_STUDY: Final = {"space": "search_space", "metric": "objective", "trials": "n_trials"}
"""Fields of ``/studies``, and what ``/hpo/studies`` calls them."""


async def _start(
    pipeline: str, asked: BaseModel, translate: Callable[[str], Translated], submission: Submission, place: str
) -> NamedRun:
    """For the parameters see :meth:`Submission.start_translated`."""
    found = await submission.start_translated(pipeline, asked, translate, place)
    return NamedRun(**found.model_dump(), run_id=found.id, experiment_id=dag_id_of(pipeline))


@router.post("/pipelines/runs", status_code=201, responses=_ASKED_BEFORE)
async def start_pipeline(asked: PipelineRun, submission: SubmissionDep) -> NamedRun:
    """`POST /runs`, with another source, learner, hyperparameters and resources for this run."""
    name, config, data = asked.pipeline_id, asked.config, asked.data(asked.pipeline_id)

    def translate(text: str) -> Translated:
        pipeline = changed_pipeline(text, name, {}, "settings")
        deployment = Deployment.load(pipeline.team)
        settings = {
            **(source_settings(pipeline, config.data_source, deployment) if config.data_source else {}),
            **training_settings(pipeline, config.model_type, config.hyperparams, "config.hyperparams"),
            **resource_settings(pipeline, config.resources.asked(), config.model_type, deployment),
        }
        fields = {
            **{key: "config.data_source" for key in settings if key.startswith("ingest.")},
            **training_fields(pipeline, config.model_type, config.hyperparams, "config.hyperparams"),
            **resource_fields("config.resources"),
            "train.learner": "config.model_type",
        }
        return Translated(made(NewRun, pipeline=name, settings=settings, **data), fields)

    return await _start(name, asked, translate, submission, "../runs")


@router.post("/training-runs", status_code=201, responses=_ASKED_BEFORE)
async def start_training(asked: TrainingRun, submission: SubmissionDep) -> NamedRun:
    """`POST /runs`, by model, dataset, hyperparameters and resources."""
    dataset, learner = asked.dataset, asked.model.type
    name = asked.model.pipeline or (dataset.name if dataset else None)
    if name is None:
        raise SpecError("model.pipeline: name the pipeline whose model is trained, or give a dataset, which is one's")
    data = asked.data(name)

    def translate(text: str) -> Translated:
        pipeline = changed_pipeline(text, name, {}, "settings")
        settings = {
            **training_settings(pipeline, learner, asked.hyperparameters, "hyperparameters", asked.model.args),
            **resource_settings(pipeline, asked.resources.asked(), learner, Deployment.load(pipeline.team)),
        }
        fields = {
            **training_fields(pipeline, learner, asked.hyperparameters, "hyperparameters", asked.model.args),
            **resource_fields("resources"),
            "train.learner": "model.type",
        }
        return Translated(made(NewRun, pipeline=name, settings=settings, **data), fields)

    return await _start(name, asked, translate, submission, "runs")


@router.post("/hpo/studies", status_code=201, responses=_ASKED_BEFORE)
async def start_search(asked: Search, submission: SubmissionDep) -> NamedRun:
    """`POST /studies`, by search space and objective."""
    data = asked.data(asked.pipeline)

    def translate(text: str) -> Translated:
        pipeline = changed_pipeline(text, asked.pipeline, {}, "settings")
        learner, objective, before = pipeline.train.learner, asked.objective, pipeline.tune
        is_other_sampler = asked.sampler is not None and before is not None and before.sampler != asked.sampler
        words = asked.search_space
        study = made(
            NewStudy,
            pipeline=asked.pipeline,
            space=named(words, lambda name: keys_of(pipeline, learner, name, "search_space"), dimension_of),
            metric=metric_of(objective.metric, objective.direction) if objective else None,
            sampler=asked.sampler,
            sampler_settings={} if is_other_sampler else None,
            trials=asked.n_trials,
            **data,
        )
        fields = {name: _OF_STUDY.get(field, field) for name, field in study.fields().items()}
        return Translated(made(NewRun, **study.run()), fields)

    return await _start(asked.pipeline, asked, translate, submission, "../studies")


router.get("/training-runs/{run}/metrics", response_class=EventSourceResponse)(stream)


@router.post("/training-runs/{run_id}/checkpoints/{epoch}/restore", status_code=201, responses=_ASKED_BEFORE)
async def restore_training(
    run_id: str, epoch: int, submission: SubmissionDep, asked: Restored | None = None
) -> NamedRun:
    """`POST /checkpoints/{id}/restore`, of the checkpoint of an epoch's end."""
    found = await restore_epoch(run_id, epoch, asked or Restored(), submission, "../../../../runs")
    assert found.pipeline is not None, "it is an experiment"
    return NamedRun(**found.model_dump(), run_id=found.id, experiment_id=dag_id_of(found.pipeline))


@router.get("/experiments/{experiment_id}/runs/{run_id}", response_model=Run)
async def experiment_run(
    experiment_id: str,
    run_id: str,
    airflow: AirflowDep,
    response: Response,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Any:
    """`GET /runs/{id}`: the experiment is `NAME.experiments`, or a pipeline's name."""
    given, _, own = run_id.rpartition("@")
    dags = [experiment_id] if "." in experiment_id else [dag_id_of(experiment_id), experiment_id]
    refused = Problem(404, f"experiment {experiment_id!r} has no run {run_id!r}: see GET /runs")
    for dag_id in dags if given in ("", *dags) else []:
        try:
            return await run(f"{dag_id}@{own}", airflow, response, if_none_match)
        except Problem as error:
            if error.status not in (httpx.codes.NOT_FOUND, httpx.codes.FORBIDDEN):
                raise
            if error.status == httpx.codes.FORBIDDEN:
                refused = error
    raise refused


class Registration(Asked):
    """A model that was trained elsewhere."""

    name: PipelineName = Field(description="Of the registered model")
    version: str | None = Field(
        default=None, pattern=LABEL_PATTERN, description="What it is called there", examples=["3.1"]
    )
    artifact_uri: str = Field(
        min_length=1,
        max_length=2000,
        description="Of the file with its weights",
        examples=["s3://models/fraud/weights.pt"],
    )
    sha256: str | None = Field(
        default=None, pattern=DIGEST_PATTERN, description="Of that file; if not given, as it is when it is first read"
    )
    metrics: ClaimedMetrics = Field(default={})
    stage: str = STAGING
    pipeline: PipelineName | None = Field(default=None, description="As of `POST /models/{name}/versions`")
    as_of: str | None = Field(default=None, description="As of `POST /runs`")

    @field_validator("stage")
    @classmethod
    def _into_staging(cls, stage: str) -> str:
        if stage != STAGING:
            raise ValueError(
                f"{STAGING!r}, where a version begins, got {stage!r}: once it is registered, ask by PUT "
                "/models/{name}/versions/{version}/stage"
            )
        return stage


@router.post("/models/register", status_code=202, responses=ANSWERED)
async def register(asked: Registration, asking: ReleaseDep) -> StartedRun:
    """`POST /models/{name}/versions` with an `artifact`: it is registered where the pipeline's gate lets it pass."""
    artifact = made(
        GivenArtifact,
        uri=asked.artifact_uri,
        sha256=asked.sha256,
        version=asked.version,
        metrics=asked.metrics,
        pipeline=asked.pipeline,
        as_of=asked.as_of,
    )
    return await judge_artifact(asked.name, artifact, asking, "../runs", "artifact_uri")
