"""The section ``train``: the model, and how it is trained."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo

from mlops.contract.extensions import is_of_recipe
from mlops.contract.learners import LEARNERS, TORCH, LearnerName, check_learns
from mlops.contract.metrics import Metric, check_distinct
from mlops.contract.objectives import OBJECTIVES, ObjectiveName, check_fitting, known_kind, known_spec
from mlops.contract.section import ImportPath, Json, Program, Section, Text, TextKeyed
from mlops.contract.sections.checkpointing import Checkpointing, ResumeFrom
from mlops.contract.sections.sample_order import SampleOrder
from mlops.contract.sections.sequence_length import SequenceLength
from mlops.contract.sections.tune import TunedSection
from mlops.contract.sections.warm_start import Initialise, LearningRate, why_not_taken


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
    """Share of the learning rate that is left at the last step; for ``linear`` and ``cosine``."""

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


class Train(TunedSection):
    """Train with torchrun; return the best checkpoint."""

    operational: ClassVar[frozenset[str]] = frozenset(
        {"max_restarts", "collective_timeout_seconds", "hang_seconds", "checkpoint", "self_test"}
    )
    # What is compared, what torchrun is started with, whose code counts, and chance.
    untunable: ClassVar[frozenset[str]] = operational | {
        *("learner", "model", "initialise", "program", "loss", "metrics", "configure_optimizer", "curriculum"),
        *("sample_order", "resume_from"),
        *("objective", "objective_settings", "metric"),
        *("nodes", "processes", "parallel", "deterministic", "elastic", "seed"),
    }

    learner: LearnerName = TORCH
    """What trains: ``torch``, a model of yours under torchrun; ``lightgbm``, gradient-boosted trees, or ``sklearn``, an
    estimator of scikit-learn, in a process; or a learner of an installed package, or ``package.module:NAME``."""
    learner_settings: dict[str, Json] = Field(default={}, validate_default=True)
    """Settings of the learner; ``torch`` has those of this section instead."""
    model: ImportPath | None = None
    """Of ``learner: torch``: ``build_model(config) -> torch.nn.Module``; ``config.num_features`` and the ``model_args``
    are its fields. A language model has ``config.vocab_size`` and ``config.context`` instead of the former; one with
    several outputs for a row has ``config.num_outputs``, too."""
    model_args: dict[str, TextKeyed] = {}
    initialise: Initialise | None = None
    """Weights to start from; None: as ``build_model`` makes them."""
    resume_from: ResumeFrom | None = None
    """A checkpoint of another training to go on from, as that one would have: with its weights, its optimizer's state
    and its place in the data. Its features and most of its settings must be the same."""
    freeze: list[Text] = []
    """Names of parameters that are not learnt; patterns: ``embedding.*``. What a layer counts goes on, as the running
    statistics of batch normalisation."""
    learning_rates: list[LearningRate] = []
    """Of some parameters, ``{parameters: "encoder.*", factor: 0.1}``: the first that matches counts. Other parameters
    have the rate itself. Of AdamW: ``configure_optimizer`` makes groups of its own."""
    program: Program | None = None
    """A script ``include/<pipeline>/<name>.py`` of the model's recipe that torchrun starts instead of our loop. It gets
    the same input and leaves weights and metrics; see :class:`mlops.Program`."""
    loss: ImportPath | None = None
    """``loss(model, batch) -> Tensor`` of one value per sample; the objective's own where None."""
    configure_optimizer: ImportPath | None = None
    """``configure_optimizer(model, learning_rate, weight_decay) -> torch.optim.Optimizer``; AdamW where None."""
    curriculum: ImportPath | None = None
    """``curriculum(batch, progress) -> Tensor``: a weight for each sample, ``[B]``, progress going from 0 to 1."""
    sample_order: SampleOrder | None = None
    """Samples from easy to hard in the first epochs, such as ``{by: include.flights.model:difficulty, until: 0.3}``;
    None: in random order."""
    sequence_lengths: list[SequenceLength] = []
    """Lengths of the sequences of tokens at first, growing, such as ``[{tokens: 128, until: 0.2}, {tokens: 512, until:
    0.5}]``; after the last one they are whole. A sample is then read as several short sequences, one after the other:
    each sample stays in its step, all its tokens are learnt, and its loss is their mean."""
    objective: ObjectiveName
    """What is learnt: ``ranking`` (graded relevance within a query), ``binary`` (whether a label is 1),
    ``multiclass`` (which of several classes), ``multilabel`` (which labels a row has, any number of them),
    ``regression`` (a number, or its quantiles), ``language_model`` (the next token); or an objective of an installed
    package, or ``package.module:NAME``."""
    objective_settings: dict[str, Json] = Field(default={}, validate_default=True)
    """Settings of the objective."""
    metric: Metric
    """Chooses the best epoch, on the validation split."""
    metrics: list[Metric] = []
    """Further ones, measured on the validation split after each epoch and shown in MLflow."""
    epochs: int = Field(default=3, ge=0)
    """0: the weights of ``initialise`` are taken as they are, whatever has trained them, and measured on the validation
    split. The pipeline judges them as any others."""
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
    """Precision of activations; parameters and optimizer states stay FP32. fp16 scales the loss dynamically."""
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
    """Precision of float32 matrix products, and of convolutions on GPUs: ``highest`` multiplies all 24 bits of the
    mantissa, ``high`` takes TF32 or two bf16 numbers, ``medium`` also a single bf16 number, where the hardware
    has them."""
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
    """Number of logical shards of a global batch, for ``elastic: exact``; a power of two, at least as many as there
    will ever be processes. None: the least of them for the most ``nodes``. Each is a pass of its own: fewer are
    quicker and take more memory. Other numbers give other bits: set it where ``nodes`` or ``processes`` will
    change."""
    collective_timeout_seconds: float = Field(default=600, gt=0)
    """The longest that a process waits for the others."""
    hang_seconds: float = Field(default=300, gt=0)
    """Where no process makes progress for so long, the one that the others wait for is reported with its stack, and all
    are started again. Four times as long is allowed before the first step, and while a process waits for the store."""
    checkpoint: Checkpointing = Checkpointing()
    seed: int = Field(default=0, ge=0)

    @property
    def exact(self) -> bool:
        return self.elastic == "exact"

    def without_torch(self) -> dict[str, Any]:
        """What is not as usual of torch's own settings, as it must be where another learner trains."""
        usual = {name: _of_torch(name, field) for name, field in type(self).model_fields.items()}
        found = {n: value for n, value in usual.items() if n not in OF_EVERY_LEARNER and getattr(self, n) != value}
        return {n: value.model_dump(mode="json") if isinstance(value, Section) else value for n, value in found.items()}

    def why_untunable(self) -> str | None:
        if self.resume_from:
            return "left out: with train.resume_from the settings are those of the training that is gone on with"
        if not self.epochs:
            return "left out: with train.epochs: 0 nothing is learnt"
        if self.initialise and not self.initialise.is_fixed:
            return (
                f"left out, or train.initialise.model a version's number instead of {self.initialise.model}: all "
                "trials must start from the same weights"
            )
        return None

    @field_validator("learner_settings")
    @classmethod
    def _settings_of_the_learner(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        learner = info.data.get("learner")
        return value if learner is None else LEARNERS.checked_settings(learner, value)

    @field_validator("objective")
    @classmethod
    def _objective_in_the_recipe(cls, value: str, info: ValidationInfo) -> str:
        if (model := info.data.get("model")) is not None and is_of_recipe(value):
            recipe, own = (path.partition(":")[0].split(".")[:2] for path in (model, value))
            if recipe != own:
                raise ValueError(f"in {'.'.join(recipe)}, as the model, which is stored with it")
        return value

    @field_validator("objective_settings")
    @classmethod
    def _settings_of_the_objective(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "objective" not in info.data:
            return value
        return OBJECTIVES.checked_settings(info.data["objective"], value)

    @field_validator("metric", "metrics")
    @classmethod
    def _metrics_of_the_objective(cls, value: str | list[str], info: ValidationInfo) -> str | list[str]:
        if "objective_settings" in info.data and "objective" in info.data:
            names = [value] if isinstance(value, str) else value
            check_fitting(names, info.data["objective"], info.data["objective_settings"])
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
    def _what_the_learner_has(self) -> Train:
        if self.learner == TORCH:
            if self.model is None:
                raise ValueError("complete: learner: torch needs model, an import path of build_model(config)")
            return self
        shared = OF_EVERY_LEARNER if self.epochs else OF_EVERY_LEARNER | {"initialise"}
        for name, field in type(self).model_fields.items():
            if name not in shared and getattr(self, name) != _of_torch(name, field):
                raise ValueError(
                    f"consistent: {name} is of learner: torch; remove it, or see learner_settings of {self.learner}"
                )
        check_learns(self.learner, known_kind(self.objective, self.objective_settings), self.objective)
        return self

    @model_validator(mode="after")
    def _taken_as_they_are(self) -> Train:
        if self.initialise and self.resume_from:
            raise ValueError("consistent: resume_from brings the weights; remove it, or initialise")
        if self.epochs:
            return self
        if (why := why_not_taken(self.initialise, self.learner)) is not None:
            raise ValueError(f"consistent: {why}")
        return self

    @model_validator(mode="after")
    def _groups_of_one_optimizer(self) -> Train:
        if self.learning_rates and self.configure_optimizer:
            raise ValueError("consistent: configure_optimizer makes the groups itself; remove it, or learning_rates")
        return self

    @model_validator(mode="after")
    def _sequences_grow(self) -> Train:
        if not self.sequence_lengths:
            return self
        for what in ("tokens", "until"):
            values = [getattr(each, what) for each in self.sequence_lengths]
            if values != sorted(set(values)):
                raise ValueError(f"consistent: sequence_lengths grow, and their {what} are {values}; put them in order")
        if (objective := known_spec(self.objective)) is not None and objective.inputs != "tokens":
            raise ValueError(
                f"consistent: sequence_lengths are of tokens, and objective {self.objective} learns rows; remove them"
            )
        if self.parallel.pp > 1:
            raise ValueError("consistent: stages of a pipeline take sequences of one length; remove sequence_lengths")
        if self.compile:
            raise ValueError("consistent: a model is compiled for sequences of one length; remove sequence_lengths")
        return self

    @model_validator(mode="after")
    def _metrics_are_distinct(self) -> Train:
        check_distinct([self.metric, *self.metrics])
        return self

    @model_validator(mode="after")
    def _a_program_does_it_all(self) -> Train:
        if self.program is None:
            return self
        assert self.model is not None, "checked before"
        recipe, own = self.model.partition(":")[0].split(".")[:2], self.program.split("/")[:2]
        if recipe != own:
            raise ValueError(
                f"consistent: program must lie in {'/'.join(recipe)}, as the model, which is stored with it"
            )
        of_our_loop = ("loss", "metrics", "configure_optimizer", "curriculum", "early_stopping", "freeze")
        for name in (*of_our_loop, "initialise", "resume_from", "learning_rates", "sample_order", "sequence_lengths"):
            if getattr(self, name) and (name != "initialise" or self.epochs):
                raise ValueError(f"consistent: {name} is not used where there is a program; remove one of the two")
        if self.exact:
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
            if (objective := known_spec(self.objective)) is not None and objective.inputs == "tokens":
                raise ValueError(
                    "consistent: micro_batch_rows is for groups of rows, and tokens have none; set micro_batch"
                )
        if self.checkpoint.peers and fixed > max(given.dp_replicate, 1):
            raise ValueError(
                "consistent: checkpoint.peers: 1 works with replicas only; remove it, or dp_shard, tp and pp"
            )
        if self.exact:
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


OF_EVERY_LEARNER: Final = frozenset(
    {"learner", "learner_settings", "objective", "objective_settings", "metric", "metrics", "epochs"}
    | {"early_stopping", "checkpoint", "seed"}
)
"""Settings that all learners have."""


def _of_torch(name: str, field: FieldInfo) -> Any:
    """Return what a setting of torch's is where nobody sets it."""
    return 1 if name == "logical_shards" else field.get_default(call_default_factory=True)


def node_range(nodes: int | str) -> tuple[int, int]:
    """The fewest and the most nodes."""
    fewest, _, most = str(nodes).partition(":")
    return int(fewest), int(most or fewest)
