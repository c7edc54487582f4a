"""Models, as the REST API shows them, and what it takes that changes them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, field_validator, model_validator

from mlops.contract.rest.asked import Asked
from mlops.contract.rest.runs import RunSummary
from mlops.contract.section import CLAIM_PATTERN, DIGEST_PATTERN, LABEL_PATTERN, NAME_PATTERN, alike
from mlops.contract.stages import ARCHIVED, CANARY, PRODUCTION, STAGING, reason_of


class Model(BaseModel):
    """A registered model."""

    name: str
    pipeline: str
    """That has registered its newest version."""
    aliases: dict[str, str]
    """Version of each: ``champion`` is the one in production."""


class Models(BaseModel):
    """Of the pipelines that the asker may read."""

    models: list[Model]
    unreachable: list[str] = []
    """A sentence for each MLflow that did not answer, with its address and the team whose models are missing."""


class ModelVersionSummary(BaseModel):
    """A version of a model, as lists have it."""

    name: str
    version: str
    semantic_version: str | None
    """Null for a moment after it was registered."""
    pipeline: str
    """That has registered it."""
    stage: str | None
    """``staging``, ``canary``, ``production`` or ``archived``; null where it was never in any."""
    registered_at: datetime
    reason: str
    """Why the evaluation let it pass."""
    metrics: dict[str, float] | None
    """Of the evaluation: ``candidate.NAME``, ``champion.NAME``, and the limits of intervals. Null where somebody has
    changed the version's tag with its lineage."""
    dataset_version: str
    """Of the snapshot that it was trained on."""
    tracking_run: str
    """Of MLflow."""


class ModelVersionPage(BaseModel):
    """A page of a model's versions."""

    versions: list[ModelVersionSummary]
    next: str | None
    """The cursor of the next page; null on the last one."""


class ModelVersion(ModelVersionSummary):
    """A version of a model, and where it came from."""

    git_commit: str | None
    artifact_sha256: dict[str, str]
    """Digest of each file that the steps committed, by its key in the store."""
    lineage: list[dict[str, Any]]
    """What each step committed on the way to it, the snapshot first: ``kind``, ``place`` and its own facts."""


class Difference(BaseModel):
    """A fact in which two trainings differ."""

    what: str
    """``train.learning_rate``, ``rows of 2013-02-07``."""
    before: str
    after: str


PartName = Literal["data", "code", "environment", "parameters", "metrics"]
"""What two trainings may differ in."""


class DifferencePart(BaseModel):
    """One of the things that two trainings may differ in."""

    name: PartName
    is_equal: bool
    said: str
    """What is equal, in words; empty where it differs."""
    differences: list[Difference]
    patch: str
    """Unified diff of the recipe's files; empty where they are equal."""


class TrainingDifference(BaseModel):
    """In what two trainings, or the versions of a model that they made, differ."""

    before: str
    after: str
    parts: list[DifferencePart]
    """Each, equal or not."""

    @property
    def is_equal(self) -> bool:
        return all(part.is_equal for part in self.parts)


def _told_apart(metrics: dict[str, float]) -> dict[str, float]:
    if (said := alike(metrics)) is not None:
        raise ValueError(said)
    return metrics


ClaimedMetrics = Annotated[
    dict[Annotated[str, Field(pattern=CLAIM_PATTERN)], Annotated[float, Field(strict=True, allow_inf_nan=False)]],
    Field(
        max_length=100, description="As whoever has trained it says: kept as said", examples=[{"auc": 0.97, "f1": 0.89}]
    ),
    AfterValidator(_told_apart),
]
"""By name."""


class GivenArtifact(Asked):
    """Weights that were trained elsewhere, in the form in which the pipeline's checkpoints have them."""

    uri: str = Field(
        min_length=1, max_length=2000, description="Of the file", examples=["s3://models/flight_ranking/weights.pt"]
    )
    sha256: str | None = Field(
        default=None, pattern=DIGEST_PATTERN, description="Of the file; if not given, as it is when it is first read"
    )
    version: str | None = Field(
        default=None, pattern=LABEL_PATTERN, description="What it is called there", examples=["3.1"]
    )
    metrics: ClaimedMetrics = Field(default={})
    pipeline: str | None = Field(
        default=None,
        pattern=NAME_PATTERN,
        description="That judges it; if not given, the one that has registered the model's newest version, or that of "
        "the model's name",
    )
    as_of: str | None = Field(default=None, description="On which data it is judged, as of `POST /runs`")


class NewVersion(Asked):
    """What is to be registered: a training of an experiment, or weights that were trained elsewhere."""

    run: str | None = Field(
        default=None,
        description="The experiment's id, as `GET /runs` lists it",
        examples=["flight_ranking.experiments@experiment__20130209T120000Z_1f2e3d4c"],
    )
    training: str | None = Field(
        default=None,
        description="Which one, where the experiment had several: its place, or the last part of it",
        examples=["20130209T050000Z-1e89fd782e2c"],
    )
    artifact: GivenArtifact | None = Field(default=None, description="In place of a run")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.run is None) == (self.artifact is None):
            raise ValueError("say `run`, an experiment, or `artifact`, weights that were trained elsewhere")
        if self.artifact is not None and self.training is not None:
            raise ValueError("`training` names one of a `run`: leave it out with an `artifact`")
        return self


class StartedRun(RunSummary):
    """A run that changes the registry, or may."""

    waits_for: str | None
    """What must happen before it begins, in a sentence; null where Airflow starts it by itself."""


class NewStage(Asked):
    """The stage that a version is wanted in."""

    stage: Literal[STAGING, CANARY, PRODUCTION, ARCHIVED] = Field(examples=[PRODUCTION])  # type: ignore[valid-type]


class StageAnswer(BaseModel):
    """How far a version is on its way into production, and who decides."""

    model: str
    version: str
    stage: str | None
    """Where it is now; null where it was registered this moment."""
    wanted: str
    is_done: bool
    """Whether it is in that stage."""
    waits_for: str | None
    """What comes next, in a sentence; null where it is done."""
    question: str | None
    """Address of the form that waits for an answer, relative to Airflow's; null where none does now."""
    approvers: list[str]
    """Who may answer the form, as the pipeline names them; empty where none waits."""
    run: str | None
    """Id of the run that decides; null where it is done."""
    airflow: str | None
    """Address of that run's page, relative to Airflow's."""


MODEL_VERSION_PATTERN: Final = r"^[1-9]\d{0,17}$"
"""MLflow's number of a version."""


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class NewRollback(Asked):
    """A model's champion that is to be taken back."""

    why: str = Field(max_length=1000, description="For the audit trail", examples=["complaints about late flights"])
    champion: Annotated[str | None, BeforeValidator(_as_text, json_schema_input_type=str | int | None)] = Field(
        default=None,
        pattern=MODEL_VERSION_PATTERN,
        description="The version to take back: nothing happens where another one is in production by then. If not "
        "given, the one that is in production when this is asked for",
        examples=["7"],
    )

    @field_validator("why")
    @classmethod
    def _one_line(cls, why: str) -> str:
        return reason_of(why)

    def conf(self, model: str) -> dict[str, Any]:
        """What the run of Airflow is triggered with."""
        return {"model": model, **self.model_dump(exclude_none=True)}
