"""
The step contract: what goes into a step's process and what comes out. Standard library only.

In: one JSON document (:class:`StepInput`), by file, its path the last argument of the process.
Out: one JSON document, ``{"v": 1, "ref": {...}}`` or ``{"v": 1, "error": {...}}``, written to the file named by
``MLOPS_RESULT_PATH``. No document at all (out of memory, kill, eviction) is an infrastructure failure: retry.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlops.contract.refs import (
    Artifact,
    CheckpointRef,
    DatasetRef,
    FeaturesRef,
    ModelVersionRef,
    PredictionsRef,
    Ref,
    ReportRef,
    StudyRef,
    TrialRef,
    ValidationRef,
    digest_of,
    ref_from_wire,
)

DOCUMENT_VERSION = 1

EXPERIMENTS = "experiments"
"""Folder of the store with what people try out, and name of that which belongs to them; see :class:`RunIdentity`."""

EXPERIMENT_STEPS = ("ingest", "validate", "features", "tune", "train", "evaluate")
"""What an experiment may do. It never registers a model, nor puts one into production."""

RESULT_PATH_VARIABLE = "MLOPS_RESULT_PATH"
"""Names the file for the result document."""
STORE_VARIABLE = "MLOPS_STORE"
"""URI of the object store's root, ``file:///...`` or ``s3://bucket/prefix``."""
HOME_VARIABLE = "MLOPS_HOME"
"""Folder that holds ``include/``; relative paths in a pipeline start there."""
VALIDATION_PYTHON_VARIABLE = "MLOPS_VALIDATION_PYTHON"
"""Interpreter of the validation runtime, for commands of the training runtime that do a validation again."""
PARENT_VARIABLE = "MLOPS_PARENT_PID"
"""Process id of the launcher, or of the warm runtime that it asked; the step ends when that process does."""
GRACE_VARIABLE = "MLOPS_GRACE_SECONDS"
"""Seconds from SIGTERM to SIGKILL that torchrun's workers have."""
TRACKING_VARIABLES = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
"""User and password at MLflow, by the names that MLflow's own client reads."""
WORKSPACE_VARIABLE = "MLFLOW_WORKSPACE"
"""Workspace at MLflow, by the name that MLflow's own client reads."""
WORKSPACE_HEADER = "X-MLFLOW-WORKSPACE"
"""The same in a request."""
STEPS_VARIABLES = ("MLOPS_STEPS_USERNAME", "MLOPS_STEPS_PASSWORD")
"""User and password for the steps that a command starts: code of a recipe runs in them."""
LINEAGE_VARIABLE = "MLOPS_LINEAGE"
"""Names all process groups that one torchrun starts, on all its nodes, one after another."""

FAILED, LOST, INTERRUPTED = 1, 70, 143
"""Exit codes: failed and said why; a pod that ended without a word; ended because it was asked to (SIGTERM), its
checkpoint written: no failure."""

ATTEMPT_VARIABLE = "MLOPS_ATTEMPT"
"""In a pod: names this attempt, for :func:`failure_key`."""
OUTAGE = "outage"
"""In the details of a failure: the service that was away."""


def python_path(home: Path) -> str:
    """
    ``PYTHONPATH`` of a step's process: recipes, and the package ``mlops``.

    :param home: the folder that holds ``include/`` and ``training/``
    """
    return os.pathsep.join(map(str, (home, home / "training")))


def scratch_parent() -> Path | None:
    """Return the folder of the launcher, who removes it however the step ends; None outside of a step."""
    result = os.environ.get(RESULT_PATH_VARIABLE)
    return Path(result).parent if result else None


def connection_variable(connection: str) -> str:
    """
    The environment variable that hands an Airflow connection to a step: a JSON object with ``conn_type``, ``host``,
    ``port``, ``login``, ``password``, ``schema`` and ``extra``. Never in the document: that is kept, and shown.
    """
    return "MLOPS_CONNECTION_" + "".join(letter if letter.isalnum() else "_" for letter in connection.upper())


@dataclass(frozen=True, slots=True)
class StepType:
    """The one input and the one output of a step, and the runtime it needs."""

    consumes: tuple[type[Ref], ...]
    """Any one of these; none: the step is the first."""
    produces: type[Ref]
    runtime: str
    login: str | None = None
    """Which of the deployment's logins at MLflow the step gets; None: it does not ask MLflow."""
    hands_on: bool = False
    """Its ``hand_on`` puts what is committed where others read it, at each try: it may have been killed there."""


STEPS: Mapping[str, StepType] = {
    "ingest": StepType((), DatasetRef, "training"),
    "validate": StepType((DatasetRef,), ValidationRef, "validation"),
    "features": StepType((ValidationRef,), FeaturesRef, "training"),
    "trial": StepType((FeaturesRef,), TrialRef, "training", "steps"),
    "tune": StepType((FeaturesRef,), StudyRef, "training", "steps"),
    "train": StepType((FeaturesRef, StudyRef), CheckpointRef, "training", "steps"),
    "evaluate": StepType((CheckpointRef,), ReportRef, "training", "steps"),
    "register": StepType((ReportRef,), ModelVersionRef, "training", "release"),
    "promote": StepType((ModelVersionRef,), ModelVersionRef, "training", "release"),
    "predict": StepType((DatasetRef, ValidationRef), PredictionsRef, "training", hands_on=True),
}

OPTIONAL: frozenset[str] = frozenset({"trial", "tune", "predict"})
"""Steps that a pipeline may do without."""
LINE: tuple[str, ...] = tuple(step for step in STEPS if step not in OPTIONAL)
"""The steps of every pipeline, in order."""


class StepError(Exception):
    """
    A step failed, and knows why.

    :param message: what happened, the value and the fix: it is what the user reads
    :param details: further facts as JSON, e.g. the anomalies of a validation
    """

    retryable = True

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details


class OutageError(StepError):
    """
    A service that steps need does not answer, or answers that it is overloaded: the task waits for it, and uses no try.
    """

    service: str
    """The service that is away, one of those in :mod:`mlops.contract.outages`."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **{OUTAGE: self.service}, **details)


class BadDataError(StepError):
    """The data is wrong: trying again cannot help."""

    retryable = False


class BadConfigError(StepError):
    """The pipeline asks for something impossible: trying again cannot help."""

    retryable = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RunIdentity:
    """Which run a step belongs to, as far as Airflow is concerned."""

    pipeline: str
    run_key: str
    """See :func:`run_key`."""
    interval_start: str
    """Start of the data interval, ISO 8601, UTC."""
    interval_end: str
    timezone: str
    """IANA name of the zone whose calendar days the pipeline works in, e.g. ``America/New_York``."""
    dag_id: str
    task_id: str
    run_id: str
    try_number: int
    user: str = ""
    """Who started the run by hand; empty where the schedule did."""
    experiment: str = ""
    """``USER/PIPELINE`` or ``USER/PIPELINE.NAME`` where the pipeline is only tried out: what it has not made already
    lies apart. Empty for the pipeline's own runs."""
    adopts: str = ""
    """Place of a training of an experiment that the pipeline's own run judges; empty: the run trains itself."""

    @property
    def owner(self) -> str:
        """What the results belong to: the pipeline, or ``experiments/USER/...``."""
        return f"{EXPERIMENTS}/{self.experiment}" if self.experiment else self.pipeline

    @property
    def folder(self) -> str:
        """Where the results lie in the store: ``pipelines/PIPELINE``, or ``experiments/USER/...``."""
        return self.owner if self.experiment else f"pipelines/{self.pipeline}"

    @property
    def author(self) -> str:
        """Who does this, in the words of an audit trail."""
        task = f"{self.dag_id}/{self.run_id}/{self.task_id}"
        return f"{self.user} by {task}" if self.user else task


@dataclass(frozen=True, kw_only=True, slots=True)
class StepInput:
    """Everything a step's process is given."""

    step: str
    run: RunIdentity
    config: Mapping[str, Any]
    ref: Ref | None = None
    baselines: Mapping[str, Ref] = field(default_factory=dict)
    """Refs of other runs that the result is held against, e.g. ``champion``. Not part of the run key: what is
    committed stays committed when another model becomes the champion."""
    sections: Mapping[str, Any] = field(default_factory=dict)
    """Settings of all the pipeline's steps, where this one looks at them before it begins. Not part of the run key."""
    code_paths: Sequence[str] = ()
    """The user's files and folders that the step runs, relative to the project folder."""
    code: str = ""
    """
    Digest of these files where the run key was made, see :func:`mlops.contract.code_files.code_digest`. An image may
    hold others.
    """
    recipes: Mapping[str, Artifact] = field(default_factory=dict)
    """Recipes that somebody has sent with the run, by their folders ``include/<name>``: they stand in for those of the
    project. Zips, see :mod:`mlops.contract.recipe_bundles`."""
    reproduces: str = ""
    """``MODEL/VERSION`` where its work is only done again, to be compared: nothing new is made from the result."""
    v: int = field(default=DOCUMENT_VERSION)

    @property
    def place(self) -> str:
        return f"{self.run.folder}/{self.step}/{self.run.run_key}"

    @property
    def pipelines_place(self) -> str:
        """Where the pipeline's own run keeps the same work."""
        return place(self.run.pipeline, self.run.run_key, self.step)

    def dump(self) -> str:
        document = {
            "v": self.v,
            "step": self.step,
            "run": asdict(self.run),
            "config": self.config,
            "ref": self.ref.to_wire() if self.ref else None,
            "baselines": {name: ref.to_wire() for name, ref in self.baselines.items()},
            "sections": dict(self.sections),
            "code_paths": list(self.code_paths),
            "code": self.code,
            "reproduces": self.reproduces,
        }
        if self.recipes:
            document["recipes"] = {name: asdict(artifact) for name, artifact in self.recipes.items()}
        return json.dumps(document, indent=1, sort_keys=True, allow_nan=False)

    @classmethod
    def load(cls, text: str) -> StepInput:
        document = json.loads(text)
        if document.get("v") != DOCUMENT_VERSION:
            raise BadConfigError(
                f"step input has version {document.get('v')!r}, this runtime reads {DOCUMENT_VERSION}: "
                "deploy the provider and the runtime images from one release"
            )
        ref = document["ref"]
        return cls(
            step=document["step"],
            run=RunIdentity(**document["run"]),
            config=document["config"],
            ref=ref_from_wire(ref) if ref is not None else None,
            baselines={name: ref_from_wire(wire) for name, wire in document.get("baselines", {}).items()},
            sections=document.get("sections", {}),
            code_paths=tuple(document.get("code_paths", ())),
            code=document.get("code", ""),
            recipes={name: Artifact(**wire) for name, wire in document.get("recipes", {}).items()},
            reproduces=document.get("reproduces", ""),
        )


def place(pipeline: str, run_key: str, step: str) -> str:
    """The step's folder in the store: never a function of the try number."""
    return f"pipelines/{pipeline}/{step}/{run_key}"


def failure_key(place: str, attempt: str) -> str:
    """Where a pod leaves its :class:`Failure`, as JSON: the pod is gone when somebody asks."""
    return f"{place}/failures/{attempt}.json"


def deprecation_key(dataset: str, version: str) -> str:
    """Where the store says that a snapshot shall not be used any more: an object there is the deprecation."""
    return f"pipelines/{dataset}/deprecated/{version}.json"


def run_key(step: str, interval_end: str, timezone: str, config: Mapping[str, Any], ref: Ref | None, code: str) -> str:
    """
    Name the work: the data interval's end, and a digest of all that decides the result.

    Equal work has an equal key, so that a retry, a cleared task or a second run of the same night finds what is
    committed; changed parameters, code or input give another key, so that nothing stale is ever returned.

    :param interval_end: ISO 8601
    :param timezone: IANA name; whose midnights bound the data's window
    :param code: digest of the user's files that the step runs, see :func:`mlops.contract.code_files.code_digest`
    """
    work = {"step": step, "timezone": timezone, "config": config, "ref": ref.digest() if ref else None, "code": code}
    compact = interval_end.replace("-", "").replace(":", "").replace("+0000", "Z")
    return f"{compact}-{digest_of(work)[:12]}"


def used_key(place: str) -> str:
    """The key of an empty object: when it was written is when a run last took what is committed at a place."""
    return f"{place}/used"


@dataclass(frozen=True, slots=True)
class Failure:
    """The error half of a result document."""

    type: str
    message: str
    retryable: bool
    details: Mapping[str, Any]

    @property
    def outage(self) -> str | None:
        """The service that was away, where that is why."""
        return self.details.get(OUTAGE)

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        if isinstance(error, StepError):
            return cls(type(error).__name__, str(error), error.retryable, error.details)
        if isinstance(error, ModuleNotFoundError):
            fix = "install it in the runtime of the step's process, or in the image of its pod"
            return cls(type(error).__name__, f"{error}: {fix}", False, {})  # missing in the next try, too
        return cls(type(error).__name__, str(error) or repr(error), True, {})


def write_result(path: Path, outcome: Ref | Failure) -> bool:
    """
    Write the result document whole or not at all. The first writer wins: with several ranks it is the first to fail.

    :return: whether this call wrote it
    """
    body = {"ref": outcome.to_wire()} if isinstance(outcome, Ref) else {"error": asdict(outcome)}
    text = json.dumps({"v": DOCUMENT_VERSION, **body}, default=str)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
        file.write(text)
    try:
        os.link(file.name, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(file.name)
    return True


def read_result(path: Path) -> Ref | Failure | None:
    """The outcome, or None where the process ended without one."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    if document.get("v") != DOCUMENT_VERSION:
        return Failure("ContractError", f"result document has version {document.get('v')!r}", False, {})
    if "error" in document:
        return Failure(**document["error"])
    return ref_from_wire(document["ref"])
