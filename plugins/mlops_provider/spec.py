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
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

ImportPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""``package.module:name``"""
TRANSFORM_PATTERN = r"^([A-Za-z_][\w.]*:[A-Za-z_]\w*|include/\w+/[\w./-]+\.sql)$"
Transform = Annotated[str, StringConstraints(pattern=TRANSFORM_PATTERN)]
"""An import path, or a file ``include/<pipeline>/<name>.sql``."""
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


ColumnType = Literal[
    "string", "boolean", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64", "date", "datetime",
]  # fmt: skip
"""Type of a column. ``date`` is read from ISO 8601, ``datetime`` from ISO 8601 with an offset; it is an instant."""


class Source(Section):
    """One table to read, and which of its records count as of the interval's end."""

    event_time: str | None = None
    """Column with the instant to which a row belongs. Rows at or after the interval's end are never read.
    None for tables without history."""
    created_time: str | None = None
    """Column with the instant at which a record was written. Records written at or after the interval's end are never
    read, whatever their event time."""
    key: list[str] = []
    """Columns that name a thing. Of several records of one thing the one written last counts, as of the interval's
    end; empty: every record counts."""
    history_days: int | None = Field(default=None, ge=0)
    """Rows older than this many days before the window are not read; None: all are."""
    types: dict[str, ColumnType] = {}
    """Types of columns that cannot be told from their values, or must be others."""

    @field_validator("key")
    @classmethod
    def _latest_by_created_time(cls, value: list[str], info: ValidationInfo) -> list[str]:
        if value and not info.data.get("created_time"):
            raise ValueError("given with created_time, which says which record of a key is the last")
        return value

    @field_validator("types")
    @classmethod
    def _instants_stay_instants(cls, value: dict[str, ColumnType], info: ValidationInfo) -> dict[str, ColumnType]:
        for setting in ("event_time", "created_time"):
            column = info.data.get(setting)
            if column is not None and value.get(column, "datetime") != "datetime":
                raise ValueError(f"without {column!r}, which {setting} names: it is a datetime")
        return value

    @field_validator("history_days")
    @classmethod
    def _history_by_event_time(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and not info.data.get("event_time"):
            raise ValueError("given with event_time, which says how old a row is")
        return value


class FileSource(Source):
    """
    Files, on a disk or in an object store. The format follows from the name: .parquet; .csv or .jsonl, either of them
    also as .gz, .zip or .zst.
    """

    kind: Literal["files"] = "files"
    path: str
    """File or glob: relative to the project folder, absolute, or ``s3://bucket/...``."""
    null_values: list[str] = ["NA"]
    """Strings that mean null in CSV files."""


class SqlSource(Source):
    """The rows of a query, all from one state of the database: PostgreSQL or SQLite."""

    kind: Literal["sql"]
    connection: str
    """Airflow connection of type ``postgres`` or ``sqlite``."""
    query: str
    """A SELECT."""
    range_column: str | None = None
    """Number, date or instant by whose ranges PostgreSQL is read in parallel; None: in one go."""
    num_ranges: int = Field(default=4, ge=1, le=64)
    """Connections at once."""


class DeltaSource(Source):
    """A Delta table at one version."""

    kind: Literal["delta"]
    path: str
    """Folder of the table, relative to the project folder, or ``s3://bucket/...``."""
    version: int | None = Field(default=None, ge=0)
    """None: the newest that was committed before the interval's end."""


class IcebergSource(Source):
    """An Iceberg table at one snapshot."""

    kind: Literal["iceberg"]
    table: str
    """``namespace.table``"""
    catalog: dict[str, str] = {}
    """PyIceberg's catalog properties and ``name``, e.g. ``{name: prod, type: rest, uri: https://...}``; secrets belong
    into the connection."""
    connection: str | None = None
    """Airflow connection whose extra holds further catalog properties."""
    snapshot_id: int | None = None
    """None: the table's current one at the interval's end."""


class RedisSource(Source):
    """The entries of a Redis stream up to the interval's end, one row each, a column for each field."""

    kind: Literal["redis"]
    connection: str
    """Airflow connection of type ``redis``."""
    stream: str
    """Key of the stream."""
    columns: dict[str, str] = {}
    """Column -> field of the entries; empty: every field is a column of its name."""
    event_time: str | None = "stream_time"
    """By default the instant in an entry's id, which the row has as ``stream_time``, beside ``stream_id``."""


class KafkaSource(Source):
    """The messages of a Kafka topic up to the interval's end: values are JSON objects, one row each."""

    kind: Literal["kafka"]
    connection: str
    """Airflow connection of type ``kafka``: its extra holds librdkafka's settings."""
    topic: str
    event_time: str | None = "kafka_timestamp"
    """By default the message's timestamp, which the row has as ``kafka_timestamp``, beside ``kafka_partition`` and
    ``kafka_offset``."""


_SOURCES = {
    "files": FileSource,
    "sql": SqlSource,
    "delta": DeltaSource,
    "iceberg": IcebergSource,
    "redis": RedisSource,
    "kafka": KafkaSource,
}


def _kind_of_source(value: object) -> str | None:
    if isinstance(value, Source):
        return f"({type(value).__name__})"
    kind = value.get("kind", "files" if "path" in value else None) if isinstance(value, Mapping) else None
    return f"({_SOURCES[kind].__name__})" if isinstance(kind, str) and kind in _SOURCES else None


AnySource = Annotated[
    Annotated[FileSource, Tag("(FileSource)")]
    | Annotated[SqlSource, Tag("(SqlSource)")]
    | Annotated[DeltaSource, Tag("(DeltaSource)")]
    | Annotated[IcebergSource, Tag("(IcebergSource)")]
    | Annotated[RedisSource, Tag("(RedisSource)")]
    | Annotated[KafkaSource, Tag("(KafkaSource)")],
    Discriminator(
        _kind_of_source,
        custom_error_type="kind_of_source",
        custom_error_message="files (give their path), or have a kind: sql, delta, iceberg, redis or kafka",
    ),
]


class TimeSplit(Section):
    """By time: the newest days for test, those before for validation, the rest for training."""

    validation_days: int = Field(default=3, ge=1)
    """Days before the test days; the best epoch is chosen on them."""
    test_days: int = Field(default=3, ge=1)
    """The newest days; candidate and champion are compared on them."""


class KeySplit(Section):
    """By a hash of an entity's key: all rows of a key are in one split, tonight and in every later night."""

    key: str
    """Column of the resulting table, text or whole numbers without nulls, e.g. ``user_id``."""
    validation: float = Field(default=0.1, gt=0, lt=1)
    """Share of the keys on which the best epoch is chosen."""
    test: float = Field(default=0.1, gt=0, lt=1)
    """Share of the keys on which candidate and champion are compared."""

    @model_validator(mode="after")
    def _something_to_train_on(self) -> KeySplit:
        if self.validation + self.test >= 1:
            raise ValueError("content with all keys: make validation and test add up to less than 1")
        return self


def _kind_of_split(value: object) -> str:
    by_key = isinstance(value, KeySplit) or (isinstance(value, Mapping) and "key" in value)
    return "(KeySplit)" if by_key else "(TimeSplit)"


Split = Annotated[
    Annotated[TimeSplit, Tag("(TimeSplit)")] | Annotated[KeySplit, Tag("(KeySplit)")], Discriminator(_kind_of_split)
]


class Ingest(Section):
    """Read the sources as they were known at the end of the data interval; store an immutable snapshot."""

    sources: dict[Name, AnySource] = Field(min_length=1)
    transform: Transform | None = None
    """``transform(sources: dict[str, narwhals.LazyFrame]) -> narwhals.LazyFrame``, or a file with one SELECT over the
    sources' names; not needed for a single source."""
    event_time: str
    """Column of the resulting table, an instant; the snapshot has one partition per calendar day of it."""
    window_days: int = Field(default=30, ge=1)
    """Calendar days before the interval's end that the snapshot holds."""
    split: Split = Field(default=TimeSplit(), validate_default=True)
    """Which rows are held out: the newest days, or the keys of some entities."""
    engine: Literal["polars", "spark"] = "polars"
    """What reads and transforms the sources and fits the features: Polars on one machine, or Spark."""

    @field_validator("split")
    @classmethod
    def _split_within_window(cls, value: TimeSplit | KeySplit, info: ValidationInfo) -> TimeSplit | KeySplit:
        days = info.data.get("window_days")
        if days is not None and isinstance(value, TimeSplit) and value.validation_days + value.test_days >= days:
            raise ValueError(f"content with a window of {days} days: leave at least one of them to train on")
        return value


class Volume(Section):
    """The newest day must have about as many rows as an earlier one."""

    tolerance: float = Field(default=0.2, gt=0, lt=1)
    """0.2: between 0.8 and 1.2 times."""
    against_days: int = Field(default=1, ge=1)
    """Compare with the day this many days before; 7 compares with the same weekday."""


class Drift(Section):
    """
    How far a column's distribution may be from that of the champion's snapshot and of the previous one, and that of
    the serving log from the snapshot's. What chance would do to so many rows is allowed on top.
    """

    numbers: float = Field(default=0.1, gt=0, le=1)
    """Jensen-Shannon divergence of a column of numbers, 0 (equal) to 1 (nothing in common)."""
    values: float = Field(default=0.1, gt=0, le=1)
    """L-infinity distance of a column of strings: by how much any one value's share may change."""
    columns: dict[str, Annotated[float, Field(gt=0, le=1)] | None] = {}
    """Instead of these, for single columns; null leaves a column out, such as a number that only ever grows."""


class ServingLog(Section):
    """Requests that the model answered, in files; their columns are called as in the snapshot."""

    path: str
    """File or glob: relative to the project folder, absolute, or ``s3://bucket/...``; .parquet, or .csv or .jsonl, each
    of the two also as .gz or .zst."""
    event_time: str
    """Column with the instant of a request; those of the snapshot's window are looked at."""
    null_values: list[str] = ["NA"]
    """Strings that mean null in CSV files."""


class Validate(Section):
    """Hold the snapshot against all that is expected of it; stop the pipeline where it does not fit."""

    schema_path: str
    """TFDV schema (schema.pbtxt), relative to the project folder."""
    volume: Volume | None = Volume()
    """Also holds the snapshot against the previous one: its rows a day, and every day that both have."""
    drift: Drift | None = Drift()
    """null: distributions are not compared."""
    unique: list[Annotated[list[str], Field(min_length=1)]] = []
    """Keys: lists of columns which together occur at most once."""
    max_age_hours: float | None = Field(default=None, gt=0)
    """The newest row may be at most so many hours older than the interval's end; None: any day with rows will do."""
    slices: list[str] = []
    """Columns of few values, each of which is looked at on its own: its newest day is held against its earlier days."""
    slice_tolerance: float = Field(default=0.25, gt=0, le=1)
    """By how much a column's share of missing values may rise in a slice above that of its worst day before, beyond
    what chance would do."""
    serving_log: ServingLog | None = None
    """What the model was asked in production, to be held against what it is trained on."""


class Online(Section):
    """Publish the newest row of each entity in the Feast feature store, to be read when the model is asked."""

    store: Literal["sqlite", "redis"] = "sqlite"
    """``sqlite``: a file below the deployment's store, for one machine; ``redis``: a server, by ``connection``."""
    connection: str | None = None
    """Airflow connection id of the Redis server."""
    ttl_hours: float | None = Field(default=48, gt=0)
    """Time to live: a row whose event is older is no longer served; two days outlast one night that failed. None:
    rows are served however old they are."""

    @model_validator(mode="after")
    def _connection_of_the_store(self) -> Online:
        if self.store == "redis" and self.connection is None:
            raise ValueError("complete: for store redis name the Airflow connection, e.g. connection: redis_online")
        if self.store == "sqlite" and self.connection is not None:
            raise ValueError("consistent: a connection goes with store: redis; SQLite is a file and needs none")
        return self


class Features(Section):
    """Fit the feature set on the training split; store shards that are ready to train on."""

    feature_set: ImportPath
    """A ``FeatureSet``, e.g. ``include.flights.features:FEATURES``; its recipe's folder is stored with the features."""
    online: Online | None = None
    """Where the features are published for serving; None: nowhere. Needs ``FeatureSet.entity``."""


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
    path = list(keys_of(problem))
    name = ".".join(path)
    value = problem["input"]
    if problem["type"] == "extra_forbidden":
        known = _keys_at(section, [str(part) for part in problem["loc"][:-1]])
        near = difflib.get_close_matches(path[-1], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}"
        return f"unknown key {name!r}; {hint}"
    if problem["type"] == "missing":
        return f"the key {name!r} is missing"
    if problem["type"] == "string_pattern_mismatch":
        wanted = {
            NAME_PATTERN: "must be lower-case letters, digits and underscores",
            r"^(ndcg@[1-9]\d*|auc)$": "must be ndcg@K (ndcg@10, say) or auc",
            TRANSFORM_PATTERN: "must be an import path such as include.my_pipeline.dataset:rows, "
            "or a file such as include/my_pipeline/dataset.sql",
        }.get(str(problem["ctx"]["pattern"]), "must be an import path such as include.my_pipeline.model:build_model")
        return f"{name} {wanted}, got {value!r}"
    message = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    message = message.replace("greater than or equal to", ">=").replace("less than or equal to", "<=")
    message = message.replace("greater than", ">").replace("less than", "<")
    got = "" if isinstance(value, (Mapping, BaseModel)) else f", got {value!r}"
    return f"{name} must be {message}{got}"


def keys_of(problem: ErrorDetails) -> tuple[str, ...]:
    """Where pydantic found a problem, as the user wrote it: without the ``(Class)`` of a setting of several kinds."""
    return tuple(part for part in map(str, problem["loc"]) if not part.startswith("("))


def _keys_at(section: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The keys that the section at a path knows."""
    kinds: list[type[BaseModel]] = []
    for part in path:
        if part.startswith("("):
            section = next(kind for kind in kinds if kind.__name__ == part.strip("()"))
            continue
        field = next((f for n, f in section.model_fields.items() if part in (n, f.alias)), None)
        if field is None:
            continue  # a key of a mapping; its value's class was found one step before
        # A source may have the name of one of its own settings.
        kinds = [t for t in _types(field.annotation) if issubclass(t, BaseModel)] or kinds
        section = next(iter(kinds), section)
    return [field.alias or name for name, field in section.model_fields.items()]


def _types(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return [annotation]
    return [found for argument in getattr(annotation, "__args__", ()) for found in _types(argument)]
