"""Runs, as the REST API has them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, model_validator

from mlops.contract.extensions import RECIPES
from mlops.contract.recipe_bundles import MOST_BYTES, unpack
from mlops.contract.refs import VERSION_PATTERN
from mlops.contract.rest.asked import Asked, check_text
from mlops.contract.results import ExperimentResult
from mlops.contract.section import EXPERIMENT_NAME_PATTERN, NAME_PATTERN, Digest
from mlops.contract.settings import not_replaced
from mlops.contract.step import EXPERIMENT_STEPS

MOST_RUNS: Final = 100
"""In one answer."""
MOST_SEEDS: Final = 1000
FINISHED: Final = frozenset({"success", "failed"})
"""States of a run that has ended."""
RunKind = Literal["experiment", "night", "rollback"]
"""Pipelines tried out; pipelines' own runs, also those that judge an experiment; models taken back."""
_MOST_CHARACTERS: Final = 50_000
"""Of settings: a pipeline's file has a few thousand."""
_DEEPEST: Final = 20
"""Levels of settings within settings."""
MOST_NOTE_CHARACTERS: Final = 1000
"""Of the note of a run: Airflow takes no more."""
NOTE_CUT: Final = " ..."
"""Ends what was cut off."""
_CANCELLED: Final = "cancelled by "
_SEARCH: Final = "search: "
"""Begin lines of a run's note."""


def cancelled_by(note: str | None) -> str | None:
    """Return how a run was cancelled, in words, by its note; None where it was not by this API."""
    lines = (note or "").splitlines()
    return next((line for line in reversed(lines) if line.startswith(_CANCELLED)), None)


def with_cancellation(note: str | None, user: str) -> str:
    """Return the note of a run that a user cancels."""
    return _with_line(note or "", f"{_CANCELLED}{user}")


def with_budget(note: str | None, budget: str, user: str) -> str:
    """Return the note of a run whose search a user gives another budget; what was said of an earlier one goes."""
    others = [line for line in (note or "").splitlines() if not line.startswith(_SEARCH)]
    return _with_line("\n".join(others), f"{_SEARCH}{budget}, by {user}")


def cut_note(note: str, most: int) -> str:
    """Return as much of a note, or of a part of one, as fits into so many characters."""
    return note if len(note) <= most else f"{note[: max(most - len(NOTE_CUT), 0)]}{NOTE_CUT}"


def _with_line(note: str, line: str) -> str:
    """Return a note with another line at its end; where both do not fit, the note is cut."""
    note = cut_note(note, MOST_NOTE_CHARACTERS - len(line) - 1)
    return f"{note}\n{line}" if note else line


def _fitting(settings: dict[str, Any]) -> dict[str, Any]:
    below: list[Any] = [settings]
    for _ in range(_DEEPEST):
        values = [inner for each in below for inner in (each.values() if isinstance(each, dict) else each)]
        # What Airflow hands to a task by msgpack.
        if far := [each for each in values if isinstance(each, int) and not -(1 << 63) <= each < 1 << 64]:
            raise ValueError(f"{far[0]} is a whole number of more than 64 bits: give a smaller one, or a fraction")
        below = [inner for inner in values if isinstance(inner, dict | list)]
    if below:
        raise ValueError(f"more than {_DEEPEST} levels of settings within settings: give what is meant")
    if len(json.dumps(settings)) > _MOST_CHARACTERS:
        raise ValueError(f"more than {_MOST_CHARACTERS} characters as JSON: put them into the pipeline's file")
    check_text(json.dumps(settings, ensure_ascii=False), "one of the texts ")
    return settings


FITTING: Final = AfterValidator(_fitting)
"""For what may hold any values: few enough of them, of few levels, and such as JSON has."""
Settings = Annotated[dict[str, Any], FITTING]


RecipeFolder = Annotated[str, StringConstraints(pattern=rf"^{RECIPES}/[A-Za-z_]\w*$")]


def _recipes(given: dict[str, str]) -> dict[str, str]:
    if sum(map(len, given.values())) > MOST_BYTES * 4 // 3:
        raise ValueError(f"more than {MOST_BYTES >> 20} MB of code: what is data is read as a source")
    for folder, text in given.items():
        try:
            unpack(base64.b64decode(text, validate=True))
        except ValueError as error:
            raise ValueError(f"{folder}: {error}; mlops submit --code packs a recipe") from None
    return given


Priority = Literal["normal", "low"]
"""Of a run that waits: low ones begin when no normal one waits."""


class RunOptions(Asked):
    """What is tried out of a pipeline, and how."""

    settings: Settings = Field(
        default_factory=dict,
        description="Other values for settings, by their name in the pipeline's file; an entry of a list by its number",
        examples=[{"train.learning_rate": 0.0003, "tune": None}],
    )
    as_of: str | None = Field(
        default=None,
        description="Of the data: the newest data interval that had ended by then, a date or an instant of ISO 8601",
        examples=["2013-02-09"],
    )
    dataset: str | None = Field(
        default=None,
        pattern=VERSION_PATTERN,
        description="Start from this snapshot of the pipeline, or of one's experiments with it, in place of one of "
        "`as_of`: its version, or the beginning",
        examples=["4f1f0c"],
    )
    until: Literal[EXPERIMENT_STEPS] = Field(default=EXPERIMENT_STEPS[-1], description="The last step")  # type: ignore[valid-type]
    seeds: int = Field(default=1, strict=True, ge=1, le=MOST_SEEDS, description="Train and evaluate with so many seeds")
    sample: float | None = Field(default=None, strict=True, gt=0, le=1, description="Train on a share of the samples")
    name: str | None = Field(
        default=None, pattern=EXPERIMENT_NAME_PATTERN, description="Keeps the results apart from those of other names"
    )
    priority: Priority = Field(
        default="normal", description="Where more runs of a pipeline wait than may run: low ones begin last"
    )


class NewRun(RunOptions):
    """An experiment that is asked for."""

    pipeline: str = Field(pattern=NAME_PATTERN, examples=["flight_ranking"])
    recipes: dict[RecipeFolder, Digest] = Field(default={}, description="Digests of code that was sent")

    def conf(self) -> dict[str, Any]:
        """What is not as usual, with which the run of Airflow is triggered."""
        return self.model_dump(exclude={"pipeline"}, exclude_defaults=True)


class SubmittedRun(RunOptions):
    """An experiment, as it is asked for: a pipeline by its name, or a whole one."""

    pipeline: str | None = Field(
        default=None, pattern=NAME_PATTERN, description="The spec's, if not given", examples=["flight_ranking"]
    )
    spec: Settings | None = Field(
        default=None,
        description="A whole pipeline, as a file has it, whose steps count in place of those that Airflow has; "
        "`settings` count on top",
    )

    recipes: Annotated[dict[RecipeFolder, str], AfterValidator(_recipes)] = Field(
        default={},
        description="Code in place of that of recipes in Airflow, where its deployment takes some: by the recipe's "
        "folder a zip of it in base64, as `mlops.contract.recipe_bundles` packs it",
    )

    @model_validator(mode="after")
    def _of_a_pipeline(self) -> Self:
        named = self.pipeline if self.spec is None else self.spec.get("pipeline", self.pipeline)
        if named is None:
            raise ValueError("nothing says which pipeline: give pipeline, its name, or a spec with it")
        if not isinstance(named, str) or not re.fullmatch(NAME_PATTERN, named):
            raise ValueError(f"spec.pipeline is {named!r}: give the name of a pipeline that Airflow has")
        if self.pipeline not in (None, named):
            raise ValueError(f"pipeline is {self.pipeline}, and spec.pipeline is {named}: leave one of them out")
        return self

    def run(self, settings: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """
        Return the fields of the experiment by the pipeline's name.

        :param settings: what the spec says otherwise than the pipeline's file
        """
        name = self.pipeline or (self.spec or {})["pipeline"]
        options = self.model_dump(exclude={"pipeline", "spec", "settings", "recipes"})
        given = [*self.settings, *(["features.sample"] if self.sample is not None else [])]
        sent = {folder: hashlib.sha256(data).hexdigest() for folder, data in self.code.items()}
        found = {**not_replaced(settings, given), **self.settings}
        return {**options, "pipeline": name, "settings": found, "recipes": sent}

    @cached_property
    def code(self) -> dict[str, bytes]:
        """Return the zips that were sent, by the recipe's folder."""
        return {folder: base64.b64decode(text) for folder, text in self.recipes.items()}


class Task(BaseModel):
    """A task of a run."""

    task_id: str
    map_index: int
    """-1 where there is one of them."""
    state: str | None
    try_number: int


class EndedStep(BaseModel):
    """A step of an experiment that has ended."""

    step: str
    place: str
    """In the store."""


class RunSummary(BaseModel):
    """A run, as lists have it."""

    id: str
    """``DAG@RUN``."""
    kind: RunKind
    pipeline: str | None
    """Null of a rollback, which is a model's: see ``asked``."""
    state: str
    """``queued``, ``running``, ``success`` or ``failed``."""
    user: str | None
    """Who asked for it; null where the schedule did."""
    asked: dict[str, Any]
    """The settings and the like that it was started with."""
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    note: str | None
    """What somebody has noted at it in Airflow, also who cancelled it; else what came of it, once it has ended."""
    airflow: str
    """Address of its page, relative to Airflow's."""


class Run(RunSummary):
    """A run, and what has come out of it so far."""

    tasks: list[Task]
    steps: list[EndedStep]
    """Of an experiment: what has ended so far."""
    result: ExperimentResult | None
    """Of an experiment that has ended well; of a night from the moment that its model was evaluated. Else null."""
    failure: str | None
    """Why it failed, in the step's own words; or who has cancelled it; or, where no step of ours has failed, which task
    has, and where its log is."""


class Runs(BaseModel):
    """A page of runs."""

    runs: list[RunSummary]
    next: str | None
    """The cursor of the next page; null on the last one."""
