"""
The grammar of a pipeline: one section per step, typed, checked when the DAG is parsed, unknown keys are errors.

A section is the only place of a setting's default. YAML and operator arguments both become a section; its JSON form
is what the step's process is told (:class:`mlops_provider.step.StepInput`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, ClassVar, Literal, Self
from zoneinfo import ZoneInfo

from croniter import croniter
from pydantic import (
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mlops_provider.gate_spec import AnyRule, Fairness, Improvement, Threshold
from mlops_provider.pod_spec import Place, Pods, of_step
from mlops_provider.promote_spec import Promote
from mlops_provider.section import ImportPath, Json, Metric, Name, Program, Section, Transform
from mlops_provider.source_spec import AnySource
from mlops_provider.step import TRAIN_OPERATIONAL
from mlops_provider.team_spec import TeamName
from mlops_provider.tune_spec import Tune, TunedSection, fitted

_METRICS = {
    "ranking": ("ndcg@K", "mrr"),
    "binary": ("auc", "log_loss", "f1", "calibration_error"),
    "language_model": ("perplexity",),
}


def _check_metric(metric: str, objective: str) -> None:
    fitting = _METRICS[objective]
    if metric.partition("@")[0] not in {name.partition("@")[0] for name in fitting}:
        raise ValueError(f"measured by {' or '.join(fitting)}, for the objective is {objective}")


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
    """A ``FeatureSet``, or for text a ``TokenSet``, e.g. ``include.flights.features:FEATURES``; its recipe's folder is
    stored with the features."""
    online: Online | None = None
    """Where the features are published for serving; None: nowhere. Needs ``FeatureSet.entity``."""


class Parallel(Section):
    """How the processes share the work. The product of the four is the number of processes."""

    dp_replicate: int = Field(default=-1, ge=-1)
    """Replicas of the model that each take a part of the batch (DDP; together with dp_shard HSDP). -1: whatever the
    other three leave."""
    dp_shard: int = Field(default=1, ge=1)
    """Processes that share parameters, gradients and optimizer states of a replica and take a part of the batch each
    (FSDP2)."""
    tp: int = Field(default=1, ge=1)
    """Processes that share each layer's matrices (tensor parallel)."""
    pp: int = Field(default=1, ge=1)
    """Stages of consecutive layers (pipeline parallel)."""

    @field_validator("dp_replicate")
    @classmethod
    def _not_zero(cls, value: int) -> int:
        if value == 0:
            raise ValueError(">= 1, or -1 for the rest")
        return value


class Schedule(Section):
    """The learning rate over the training."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    """What it does after the warmup: stay, or fall to the end in a line or half a cosine."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which it rises from 0."""
    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Of the learning rate, at the last step; of linear and cosine."""

    @model_validator(mode="after")
    def _nothing_in_vain(self) -> Schedule:
        if self.kind == "constant" and self.final_fraction:
            raise ValueError("consistent: a constant rate has no final_fraction; use kind linear or cosine")
        return self


class EarlyStopping(Section):
    """End the training when the validation metric no longer gets better."""

    patience: int = Field(default=3, ge=1)
    """Epochs without improvement."""
    min_improvement: float = Field(default=0.0, ge=0)
    """What counts as one, in units of the metric."""


class Checkpointing(Section):
    """When the training's state is saved; also at the end of each epoch, and when the process is told to end."""

    every_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps."""
    every_minutes: float = Field(default=10, gt=0)
    """The longest time between two saves. They come sooner where that loses less: Daly's optimum of what a save was
    measured to cost and how often this training was interrupted (an hour where it never was), but never so often that
    saves overlap or take more than 2% of the time."""
    keep_latest: int = Field(default=3, ge=2)
    """Complete checkpoints kept beside the best one. At least 2: the newest may turn out to be damaged."""
    peers: int | None = Field(default=None, ge=0, le=1)
    """1: when a process or a node is lost, the others keep the last step's state in memory, and no step that was done
    is done again. 0: the training goes on from the last checkpoint. None: 1 for replicas on CPUs, where nothing is
    copied before a process is lost, and 0 elsewhere, where 1 is refused."""


class Train(TunedSection):
    """Train with torchrun; return the best checkpoint."""

    operational: ClassVar[frozenset[str]] = TRAIN_OPERATIONAL
    # What is compared, what torchrun is started with, whose code counts, and chance.
    untunable: ClassVar[frozenset[str]] = operational | {
        *("model", "program", "loss", "metrics", "configure_optimizer", "curriculum", "objective", "metric"),
        *("nodes", "processes", "parallel", "deterministic", "elastic", "seed"),
    }

    model: ImportPath
    """``build_model(config) -> torch.nn.Module``; ``config.num_features`` and the ``model_args`` are its fields. A
    language model has ``config.vocab_size`` and ``config.context`` instead of the former."""
    model_args: dict[str, Json] = {}
    program: Program | None = None
    """A script ``include/<pipeline>/<name>.py`` of the model's recipe that torchrun starts instead of our loop. It gets
    the same input and leaves weights and metrics; see :mod:`mlops.program`."""
    loss: ImportPath | None = None
    """``loss(model, batch) -> Tensor`` of one value per sample; the objective's own where None."""
    metrics: ImportPath | None = None
    """``metrics(labels, scores, offsets) -> dict[str, float]``: further ones on the validation split, to be seen in
    MLflow. Of a language model labels are the tokens of each sequence, and scores the sums of their losses."""
    configure_optimizer: ImportPath | None = None
    """``configure_optimizer(model, learning_rate, weight_decay) -> torch.optim.Optimizer``; AdamW where None."""
    curriculum: ImportPath | None = None
    """``curriculum(batch, progress) -> Tensor``: a weight for each sample, ``[B]``, progress going from 0 to 1."""
    objective: Literal["ranking", "binary", "language_model"]
    """What is learnt: a label, which is graded relevance within a query or 0/1; or the next token."""
    metric: Metric
    """Chooses the best epoch, on the validation split."""
    epochs: int = Field(default=3, ge=1)
    global_batch: int = Field(default=32, ge=1)
    """Samples (rows, query groups, or sequences of tokens) per optimizer step, over all processes."""
    micro_batch: int | None = Field(default=None, ge=1)
    """Samples of one process at once; gradients are accumulated over as many as the global batch asks for. None: its
    whole share, or of groups of rows on CPUs parts of it, where that spares more padding than a further pass costs."""
    micro_batch_rows: int | None = Field(default=None, ge=1)
    """Padded rows of one process at once, where samples are groups of rows: groups times the rows of the longest. It
    bounds memory where groups are uneven. A longer group has a forward pass of its own."""
    learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    schedule: Schedule = Schedule()
    clip_norm: float = Field(default=1.0, gt=0)
    """Largest global norm of the gradient."""
    early_stopping: EarlyStopping | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of activations; parameters and optimizer states stay FP32. fp16 scales the loss dynamically."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    compile: bool = False
    """By ``torch.compile``."""
    unused_parameters: bool = False
    """The data decide which parameters a loss depends on, as of experts. False: a parameter that it does not depend on
    at the first step is an error. With replicas only."""
    deterministic: Literal[True, "warn", False] = True
    """Only deterministic algorithms: the same bits each time. An operation that has none, which is so of some on GPUs,
    is an error; with ``warn`` it is used all the same, and named in the log, in MLflow and in the environment."""
    float32_matmul: Literal["highest", "high", "medium"] = "highest"
    """Of float32 matrix products, and of convolutions on GPUs: ``highest`` multiplies all 24 bits of the mantissa,
    ``high`` takes TF32 or two bf16 numbers, ``medium`` also a single bf16 number, where the hardware has them."""
    self_test: Literal["auto", "always", "never"] = "auto"
    """At the start, take two steps twice, the second time by a model that was built anew and resumed: what differs is
    state that no checkpoint holds, an error. ``auto``: where that takes less than 1% of the training, and the model is
    not compiled."""
    parallel: Parallel = Parallel()
    nodes: int | str = 1
    """torchrun nodes: a number, or ``min:max`` for a training that goes on with those that are there."""
    processes: int = Field(default=1, ge=1)
    """torchrun workers on each node."""
    max_restarts: int = Field(default=3, ge=0)
    """Times that torchrun starts the workers again from the newest checkpoint, within one try of the task."""
    elastic: Literal["fast", "exact"] = "fast"
    """``exact``: also the number of processes leaves the bits as they are. Gradients are then added up by logical
    shards in a fixed order."""
    logical_shards: int | None = Field(default=None, ge=1, validate_default=True)
    """Of a global batch, for ``elastic: exact``; a power of two, at least as many as there will ever be processes.
    None: the least of them for the most ``nodes``. Each is a pass of its own: fewer are quicker and take more memory.
    Other numbers give other bits: set it where ``nodes`` or ``processes`` will change."""
    collective_timeout_seconds: float = Field(default=600, gt=0)
    """The longest that a process waits for the others."""
    hang_seconds: float = Field(default=300, gt=0)
    """Where no process makes progress for so long, the one that the others wait for is reported with its stack, and all
    are started again. Four times as long is allowed before the first step, and while a process waits for the store."""
    checkpoint: Checkpointing = Checkpointing()
    seed: int = Field(default=0, ge=0)

    def why_untunable(self) -> str | None:
        return "left out where train.program trains, which does not say how it goes" if self.program else None

    @field_validator("metric")
    @classmethod
    def _metric_of_the_objective(cls, value: str, info: ValidationInfo) -> str:
        if (objective := info.data.get("objective")) is not None:
            _check_metric(value, objective)
        return value

    @field_validator("logical_shards")
    @classmethod
    def _a_power_of_two(cls, value: int | None, info: ValidationInfo) -> int:
        if value is None:
            # Settled here, once: what a training that shrank is told, or one that is made again, has this number.
            most: int = node_range(info.data.get("nodes", 1))[1] * info.data.get("processes", 1)
            return 1 << (most - 1).bit_length()
        if value & (value - 1):
            raise ValueError(f"a power of two, e.g. {1 << value.bit_length()}")
        return value

    @field_validator("nodes", mode="before")
    @classmethod
    def _a_number_or_a_range(cls, value: object) -> object:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not whole:
            found = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", value) if isinstance(value, str) else None
            if found is None or int(found[1]) > int(found[2]):
                raise ValueError("a number >= 1, or min:max with 1 <= min <= max, e.g. 2:4")
        return value

    @model_validator(mode="after")
    def _a_program_does_it_all(self) -> Train:
        if self.program is None:
            return self
        recipe, own = self.model.partition(":")[0].split(".")[:2], self.program.split("/")[:2]
        if recipe != own:
            raise ValueError(
                f"consistent: program must lie in {'/'.join(recipe)}, as the model, which is stored with it"
            )
        for name in ("loss", "metrics", "configure_optimizer", "curriculum", "early_stopping"):
            if getattr(self, name) is not None:
                raise ValueError(f"consistent: {name} is not used where there is a program; remove one of the two")
        if self.elastic == "exact":
            raise ValueError("consistent: elastic: exact is what our loop does, not the program; remove one of the two")
        return self

    @model_validator(mode="after")
    def _processes_of_the_layout(self) -> Train:
        given = self.parallel
        fixed = given.dp_shard * given.tp * given.pp * max(given.dp_replicate, 1)
        for nodes in sorted(set(node_range(self.nodes))):
            world_size = nodes * self.processes
            if world_size % fixed or (given.dp_replicate > 0 and world_size != fixed):
                wanted = f"{fixed} processes" if given.dp_replicate > 0 else f"a multiple of {fixed} processes"
                raise ValueError(
                    f"consistent: parallel asks for {wanted}, but there are {nodes} nodes of {self.processes}; "
                    "change parallel, nodes or processes"
                )
        if self.micro_batch_rows is not None:
            if given.pp > 1:
                raise ValueError(
                    "consistent: a pipeline pads all micro batches to one shape; remove micro_batch_rows and set "
                    "micro_batch"
                )
            if self.objective == "language_model":
                raise ValueError(
                    "consistent: micro_batch_rows is for groups of rows, and tokens have none; set micro_batch"
                )
        if self.checkpoint.peers and fixed > max(given.dp_replicate, 1):
            raise ValueError(
                "consistent: checkpoint.peers: 1 works with replicas only; remove it, or dp_shard, tp and pp"
            )
        if self.elastic == "exact":
            if fixed > max(given.dp_replicate, 1):
                raise ValueError("consistent: elastic: exact works with replicas only; remove dp_shard, tp and pp")
            for name in ("micro_batch", "micro_batch_rows"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"consistent: with elastic: exact a logical shard is one forward pass; remove {name}, and "
                        "raise logical_shards for smaller ones"
                    )
            if self.precision == "fp16":
                raise ValueError("consistent: elastic: exact does not scale losses; use precision bf16 or fp32")
            assert self.logical_shards is not None, "settled above"
            if node_range(self.nodes)[1] * self.processes > self.logical_shards:
                raise ValueError(
                    f"consistent: {node_range(self.nodes)[1] * self.processes} processes need at least as many "
                    f"logical_shards, got {self.logical_shards}"
                )
        return self


def node_range(nodes: int | str) -> tuple[int, int]:
    """The fewest and the most nodes."""
    fewest, _, most = str(nodes).partition(":")
    return int(fewest), int(most or fewest)


class Study(Tune):
    """A search, and what is searched: what the step ``tune`` is told."""

    operational: ClassVar[frozenset[str]] = frozenset({"parallel", *(f"train.{name}" for name in TRAIN_OPERATIONAL)})

    train: Train

    @model_validator(mode="wrap")
    @classmethod
    def _fitted(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        study = handler(value)
        return fitted(study, study.train)


class Trial(Study):
    """One of its trials: the step ``trial``. Done once, also where the budget is raised later."""

    operational: ClassVar[frozenset[str]] = Study.operational | {"trials", "hours", "gpu_hours"}

    number: int = Field(ge=0)


class Evaluate(Section):
    """Measure the candidate and the production model on the same held-out rows; decide by rules."""

    operational: ClassVar[frozenset[str]] = frozenset({"price_per_gpu_hour"})

    registered_model: Name
    """Name in the model registry."""
    metric: Metric
    """What the slices and, where they name none, the rules are about."""
    metrics: list[Metric] = []
    """Further ones to be measured."""
    metric_function: ImportPath | None = None
    """``function(labels, scores, offsets) -> dict[str, float]``: further ones of the recipe's own, of which a higher
    value is better; scores are logits where the objective is binary."""
    rules: list[AnyRule] = [Improvement(improvement=0.005)]
    """All must hold. Those given stand instead of the default, which asks for an improvement of 0.5%. A rule that needs
    a champion holds where there is none."""
    slices: list[str] = []
    """Columns of few values: the metric is measured on each value's rows. None given: all text columns of few."""
    fairness: list[str] = []
    """Columns of groups that are to be treated alike; with objective binary."""
    price_per_gpu_hour: float | None = Field(default=None, ge=0)
    """In whatever currency: what the training cost is then in the report."""

    @field_validator("rules")
    @classmethod
    def _some_rule(cls, value: list[AnyRule]) -> list[AnyRule]:
        if not value:
            raise ValueError("at least one rule; leave it out for the default")
        return value

    @model_validator(mode="after")
    def _rules_of_what_is_measured(self) -> Evaluate:
        measured = [self.metric, *self.metrics]
        for rule in self.rules:
            named = rule.metric if isinstance(rule, (Improvement, Threshold)) else None
            # Which ones the recipe's own function gives is known when it is called.
            if named is not None and named not in measured and self.metric_function is None:
                raise ValueError(
                    f"consistent: a rule is about {named!r}, but measured are {', '.join(measured)}; add it to metrics"
                )
            if isinstance(rule, Fairness) and not self.fairness:
                raise ValueError(
                    "consistent: a rule is about fairness, but no groups are named; give fairness: [column]"
                )
        return self


class Register(Section):
    """Register the model version, in staging; skipped where the evaluation did not pass."""

    registered_model: Name


SECTIONS: dict[str, type[Section]] = {
    "ingest": Ingest,
    "validate": Validate,
    "features": Features,
    "tune": Tune,
    "train": Train,
    "evaluate": Evaluate,
    "register": Register,
    "promote": Promote,
}


class Pipeline(Section):
    """One ``*.pipeline.yaml``."""

    pipeline: Name
    """DAG id, dataset name and model name."""
    team: TeamName | None = None
    """Whose it is, of the teams that share the deployment; None: the deployment's own."""
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

    launcher: Literal["process", "pod"] | None = None
    """How the steps run: as processes of Airflow's worker, or as Kubernetes pods. None: the deployment's choice."""
    pods: dict[Place, Pods] = {}
    """Settings of the pods, by step, and under ``all`` those of every step."""

    ingest: Ingest
    # pydantic's BaseModel has a deprecated method of that name.
    validate_: Validate = Field(alias="validate")
    features: Features
    train: Train
    tune: Tune | None = None
    """None: the training's settings are as they stand."""
    evaluate: Evaluate
    register_: Register = Field(alias="register")
    promote: Promote = Promote()

    def pods_of(self, step: str) -> dict[str, Any]:
        """What the file says of a step's pods, and nothing of the defaults."""
        given: dict[str, dict[str, Any]] = {
            place: pods.model_dump(mode="json", exclude_unset=True) for place, pods in self.pods.items()
        }
        return of_step(given, step)

    @field_validator("validate_")
    @classmethod
    def _volume_within_window(cls, value: Validate, info: ValidationInfo) -> Validate:
        days = info.data["ingest"].window_days if "ingest" in info.data else None
        if days is not None and value.volume is not None and value.volume.against_days >= days:
            raise ValueError(f"content with a window of {days} days: make volume.against_days smaller than that")
        return value

    @field_validator("tune")
    @classmethod
    def _space_of_the_training(cls, value: Tune | None, info: ValidationInfo) -> Tune | None:
        if value is None or "train" not in info.data:
            return value
        return fitted(value, info.data["train"])

    @field_validator("evaluate")
    @classmethod
    def _metric_of_the_objective(cls, value: Evaluate, info: ValidationInfo) -> Evaluate:
        if "train" in info.data:
            objective = info.data["train"].objective
            for metric in (value.metric, *value.metrics):
                _check_metric(metric, objective)
            if value.fairness and objective != "binary":
                raise ValueError(f"without fairness: it compares predicted classes, and the objective is {objective}")
        return value

    @field_validator("register_")
    @classmethod
    def _same_contest(cls, value: Register, info: ValidationInfo) -> Register:
        judged = info.data.get("evaluate")
        if judged and judged.registered_model != value.registered_model:
            raise ValueError(f"for the model of evaluate: {judged.registered_model}")
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
