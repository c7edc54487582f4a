"""
The grammar of a pipeline: one section per step, typed, checked when the DAG is parsed, unknown keys are errors.

A section is the only place of a setting's default. YAML and operator arguments both become a section; its JSON form
is what the step's process is told (:class:`mlops_provider.step.StepInput`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Annotated, Any, Literal, TypeVar
from zoneinfo import ZoneInfo

from croniter import croniter
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

ImportPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""``package.module:name``"""
NAME_PATTERN = r"^[a-z][a-z0-9_]*$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""Lower-case letters, digits and underscores."""
Metric = Annotated[str, StringConstraints(pattern=r"^(ndcg@[1-9]\d*|auc)$")]
"""``ndcg@K`` (per query, averaged) or ``auc``."""


def _check_metric(metric: str, objective: str) -> None:
    fitting = "auc" if objective == "binary" else "ndcg@K"
    if metric.partition("@")[0] != fitting.partition("@")[0]:
        raise ValueError(f"measured by {fitting}, for the objective is {objective}")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Source(Section):
    """One table to read. The format follows from the file name: .parquet, .csv, .csv.zip, .csv.gz, .jsonl."""

    path: str
    """File or glob; relative to the project folder, where it has no scheme."""
    event_time: str | None = None
    """Column with the instant (UTC) at which a row became known. Rows at or after the interval's end are never read.
    None for tables without history."""
    null_values: list[str] = ["NA"]
    """Strings that mean null in CSV files."""


class Ingest(Section):
    """Read the sources as they were known at the end of the data interval; store an immutable snapshot."""

    sources: dict[Name, Source] = Field(min_length=1)
    transform: ImportPath | None = None
    """``transform(sources: dict[str, polars.LazyFrame]) -> polars.LazyFrame``; not needed for a single source."""
    event_time: str
    """Column of the resulting table, an instant; the snapshot has one partition per calendar day of it."""
    window_days: int = Field(default=30, ge=1)
    """Calendar days before the interval's end that the snapshot holds."""


class Volume(Section):
    """The newest day must have about as many rows as an earlier one."""

    tolerance: float = Field(default=0.2, gt=0, lt=1)
    """0.2: between 0.8 and 1.2 times."""
    against_days: int = Field(default=1, ge=1)
    """Compare with the day this many days before; 7 compares with the same weekday."""


class Validate(Section):
    """Hold the snapshot against its schema; stop the pipeline where it does not fit."""

    schema_path: str
    """TFDV schema (schema.pbtxt), relative to the project folder."""
    volume: Volume | None = Volume()


class Split(Section):
    """By time: the newest days for test, those before for validation, the rest for training."""

    validation_days: int = Field(default=3, ge=1)
    test_days: int = Field(default=3, ge=1)


class Features(Section):
    """Fit the feature set on the training split; store shards that are ready to train on."""

    feature_set: ImportPath
    split: Split = Split()


class Train(Section):
    """Train with torchrun; return the best checkpoint."""

    model: ImportPath
    """``build_model(config) -> torch.nn.Module``; ``config.num_features`` and the ``model_args`` are its fields."""
    model_args: dict[str, Any] = {}
    loss: ImportPath | None = None
    """``loss(model, batch) -> Tensor`` of one value per sample; the objective's own where None."""
    objective: Literal["ranking", "binary"]
    """What the label means: graded relevance within a query, or 0/1."""
    metric: Metric
    """Chooses the best epoch, on the validation split."""
    epochs: int = Field(default=3, ge=1)
    global_batch: int = Field(default=32, ge=1)
    """Samples (rows, or query groups) per optimizer step, over all processes."""
    learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)
    processes: int = Field(default=1, ge=1)
    """torchrun workers on the node."""
    seed: int = Field(default=0, ge=0)

    @field_validator("metric")
    @classmethod
    def _metric_of_the_objective(cls, value: str, info: ValidationInfo) -> str:
        if "objective" in info.data:
            _check_metric(value, info.data["objective"])
        return value


class Evaluate(Section):
    """Measure the candidate and the production model on the same held-out rows; decide."""

    registered_model: Name
    """Name in the model registry."""
    alias: Name = "champion"
    """Alias of the model now in production."""
    metric: Metric
    min_improvement: float = Field(default=0.005, ge=0)
    """Relative: 0.005 asks for a metric more than 0.5% better than the champion's."""


class Register(Section):
    """Register the model version and make it the champion; skipped where the evaluation did not pass."""

    registered_model: Name
    alias: Name = "champion"


SECTIONS: dict[str, type[Section]] = {
    "ingest": Ingest,
    "validate": Validate,
    "features": Features,
    "train": Train,
    "evaluate": Evaluate,
    "register": Register,
}


class Pipeline(Section):
    """One ``*.pipeline.yaml``."""

    pipeline: Name
    """DAG id, dataset name and model name."""
    description: str = ""
    owner: str = "mlops"
    tags: list[str] = []
    schedule: str | None = None
    """Cron expression; None: only when triggered."""
    timezone: str = "UTC"
    """IANA name; the schedule and the calendar days of the data are in this zone."""
    start_date: date
    end_date: date | None = None
    retries: int = Field(default=2, ge=1)
    """At least 1: a killed process is retried, and a deferred task needs it."""
    retry_delay_seconds: float = Field(default=10, gt=0)
    """Doubles from try to try."""

    ingest: Ingest
    # pydantic's BaseModel has a deprecated method of that name.
    validate_: Validate = Field(alias="validate")
    features: Features
    train: Train
    evaluate: Evaluate
    register_: Register = Field(alias="register")

    @field_validator("validate_")
    @classmethod
    def _volume_within_window(cls, value: Validate, info: ValidationInfo) -> Validate:
        days = info.data["ingest"].window_days if "ingest" in info.data else None
        if days is not None and value.volume is not None and value.volume.against_days >= days:
            raise ValueError(f"content with a window of {days} days: make volume.against_days smaller than that")
        return value

    @field_validator("features")
    @classmethod
    def _split_within_window(cls, value: Features, info: ValidationInfo) -> Features:
        days = info.data["ingest"].window_days if "ingest" in info.data else None
        if days is not None and value.split.validation_days + value.split.test_days >= days:
            raise ValueError(f"content with a window of {days} days: leave at least one of them to train on")
        return value

    @field_validator("evaluate")
    @classmethod
    def _metric_of_the_objective(cls, value: Evaluate, info: ValidationInfo) -> Evaluate:
        if "train" in info.data:
            _check_metric(value.metric, info.data["train"].objective)
        return value

    @field_validator("register_")
    @classmethod
    def _same_contest(cls, value: Register, info: ValidationInfo) -> Register:
        judged = info.data.get("evaluate")
        if judged and (judged.registered_model, judged.alias) != (value.registered_model, value.alias):
            raise ValueError(f"for the model of evaluate: {judged.registered_model}, alias {judged.alias}")
        return value

    @field_validator("timezone")
    @classmethod
    def _known_timezone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ValueError, OSError, LookupError):
            raise ValueError("an IANA time zone such as America/New_York") from None
        return value

    @field_validator("schedule")
    @classmethod
    def _valid_cron(cls, value: str | None) -> str | None:
        if value is not None and not croniter.is_valid(value):
            raise ValueError('a cron expression such as "0 0 * * *"')
        return value


class SpecError(ValueError):
    """A setting is wrong; the message names the place, the value and the fix."""


SectionT = TypeVar("SectionT", bound=Section)


def check_section(section: type[SectionT], settings: Mapping[str, Any], place: str) -> SectionT:
    """
    Make a section of settings.

    :param place: where the settings stand, the beginning of the message
    :raises SpecError: one line for each mistake
    """
    try:
        return section.model_validate(settings)
    except ValidationError as error:
        lines = [f"{place}: {describe(section, problem)}" for problem in error.errors()]
        raise SpecError("\n".join(lines)) from None


def describe(section: type[Section], problem: ErrorDetails) -> str:
    """Say one of pydantic's findings in a sentence: the setting, the value and what would do."""
    path = [str(part) for part in problem["loc"]]
    name = ".".join(path)
    value = problem["input"]
    if problem["type"] == "extra_forbidden":
        known = _keys_at(section, path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}"
        return f"unknown key {name!r}; {hint}"
    if problem["type"] == "missing":
        return f"the key {name!r} is missing"
    if problem["type"] == "string_pattern_mismatch":
        wanted = {
            NAME_PATTERN: "must be lower-case letters, digits and underscores",
            r"^(ndcg@[1-9]\d*|auc)$": "must be ndcg@K (ndcg@10, say) or auc",
        }.get(str(problem["ctx"]["pattern"]), "must be an import path such as include.my_pipeline.model:build_model")
        return f"{name} {wanted}, got {value!r}"
    message = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    message = message.replace("greater than or equal to", ">=").replace("less than or equal to", "<=")
    message = message.replace("greater than", ">").replace("less than", "<")
    got = "" if isinstance(value, (Mapping, BaseModel)) else f", got {value!r}"
    return f"{name} must be {message}{got}"


def _keys_at(section: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The keys that the section at a path knows."""
    for part in path:
        field = next((f for n, f in section.model_fields.items() if part in (n, f.alias)), None)
        if field is None:
            continue  # a key of a mapping; its value's class was found one step before
        section = next((t for t in _types(field.annotation) if issubclass(t, BaseModel)), section)
    return [field.alias or name for name, field in section.model_fields.items()]


def _types(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return [annotation]
    return [found for argument in getattr(annotation, "__args__", ()) for found in _types(argument)]
