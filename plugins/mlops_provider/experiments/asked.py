"""What a person asks for on the command line, checked before anything costs time."""

from __future__ import annotations

import argparse
import difflib
import getpass
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from pathlib import Path
from zoneinfo import ZoneInfo

import pendulum
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from mlops.contract.section import NAME_PATTERN, SpecError, leaves
from mlops_provider.experiments.arguments import SPIN, STEPS
from mlops_provider.factory import build_dag
from mlops_provider.launcher_names import LAUNCHERS
from mlops_provider.operators.runs import interval_before
from mlops_provider.section_file import KeyPath
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import SUFFIX, load_pipeline, pipeline_files


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A pipeline, with other settings perhaps, as of an instant."""

    pipeline: Pipeline
    dag: DAG
    name: str
    """``USER/PIPELINE``, or ``USER/PIPELINE.NAME``."""
    interval: tuple[datetime, datetime]
    """The data interval, in UTC."""
    until: str
    """The last step, of :data:`mlops_provider.experiments.arguments.STEPS`."""
    seeds: Sequence[int]
    """Of the trainings, one after the other; none: the one of the settings."""

    @classmethod
    def of(cls, options: argparse.Namespace, now: datetime) -> Experiment:
        """
        :param options: of ``mlops run``
        :raises SpecError: naming the option, its value and the fix
        """
        path = _file(options.pipeline, options.home / "dags")
        sample = [] if options.sample is None else [f"features.sample={options.sample}"]
        changes = _changes([*options.set, *sample])
        pipeline = load_pipeline(path, changes)
        _refuse_templates(pipeline)
        if options.name != SPIN:  # which may have the search's result as input, or not
            _refuse_searched(pipeline, changes)
        if options.until == "tune" and pipeline.tune is None:
            raise SpecError(f"--until tune: {pipeline.pipeline} has no search; leave it out, or say --until train")
        if options.seeds > 1 and STEPS.index(options.until) < STEPS.index("train"):
            raise SpecError(f"--seeds: with --until {options.until} nothing is trained; leave one of the two out")
        dag = build_dag(_launched_by(options.launcher, pipeline))
        # As Airflow does: a team's tasks are checked by the file that they come from.
        dag.fileloc = str(path)
        return cls(
            pipeline=pipeline,
            dag=dag,
            # With the pipeline's name: two pipelines may have an ingest alike.
            name=f"{user()}/{pipeline.pipeline}" + (f".{options.name}" if options.name else ""),
            interval=_interval(pipeline, options.as_of, now),
            until=options.until,
            seeds=[pipeline.train.seed + number for number in range(options.seeds)] if options.seeds > 1 else [],
        )


def _launched_by(name: str, pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with this launcher of all steps; its settings are those that the file gives it."""
    try:
        LAUNCHERS.import_path(name)
    except SpecError as error:
        raise SpecError(f"--{error}") from None
    settings = pipeline.launcher_settings if name == pipeline.launcher else {}
    return pipeline.model_copy(update={"launcher": name, "launcher_settings": settings})


def user() -> str:
    """The user of this machine, as a name in the store."""
    try:
        login = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in many a container
        login = str(os.getuid())
    name = re.sub(r"[^a-z0-9_]", "_", login.lower())
    return name if re.fullmatch(NAME_PATTERN, name) else f"user_{name}"


def _file(pipeline: str, folder: Path) -> Path:
    """The file of a pipeline that is called by its name, or by its file."""
    path = Path(pipeline)
    if path.name.endswith(SUFFIX):
        if not path.is_file():
            raise SpecError(f"{path}: there is no such file")
        return path.resolve()
    found = {each.name.removesuffix(SUFFIX): each for each in pipeline_files(folder)}
    if pipeline not in found:
        near = difflib.get_close_matches(pipeline, found, n=1)
        known = f"did you mean {near[0]}?" if near else f"there are {', '.join(found) or 'none'}"
        raise SpecError(f"there is no pipeline {pipeline!r} in {folder}: {known}")
    return found[pipeline].resolve()


def _changes(given: Sequence[str]) -> Mapping[KeyPath, str]:
    changes: dict[KeyPath, str] = {}
    for each in given:
        name, sign, value = each.partition("=")
        keys = tuple(name.strip().split("."))
        if not sign or not all(keys):
            raise SpecError(f"--set {each}: write STEP.KEY=VALUE, such as train.learning_rate=3e-4")
        if keys[0] not in STEPS:
            raise SpecError(f"--set {each}: {keys[0]!r} is no step of an experiment; these are {', '.join(STEPS)}")
        if keys in changes:
            raise SpecError(f"--set {each}: {name} is given twice; keep one")
        changes[keys] = value
    return changes


def _refuse_searched(pipeline: Pipeline, changes: Mapping[KeyPath, str]) -> None:
    """What the search finds takes the place of what is given."""
    space = {} if pipeline.tune is None else pipeline.tune.space
    for (step, *keys), value in changes.items():
        if step == "train" and (name := ".".join(map(str, keys))) in space:
            raise SpecError(
                f"--set {step}.{name}={value}: what tune finds would take its place; add --set tune=null to train "
                f"without the search, or narrow tune.space.{name}"
            )


def _refuse_templates(pipeline: Pipeline) -> None:
    """Airflow fills them in, with what only a run of its own has."""
    for keys, value in leaves(pipeline.model_dump(mode="json", by_alias=True, include={*STEPS, "validate_"})):
        if isinstance(value, str) and ("{{" in value or "{%" in value):
            raise SpecError(
                f"{'.'.join(keys)} is a template, {value!r}, which a run of Airflow fills in: give it a value by "
                f"--set {'.'.join(keys)}=VALUE"
            )


def _interval(pipeline: Pipeline, given: str | None, now: datetime) -> tuple[datetime, datetime]:
    """The newest data interval that has ended."""
    zone = ZoneInfo(pipeline.timezone)
    if given is None:
        end = datetime.combine(pipeline.end_date, time(), zone) if pipeline.end_date is not None else now
        instant = min(now, end)
    else:
        instant = as_instant(given, pipeline.timezone)
        if instant > now:
            raise SpecError(f"--as-of {given} is yet to come: what its data will be is not known")
    if pipeline.schedule is None:
        return interval_before(instant, pipeline.timezone, pipeline.ingest.grain)
    timetable = CronDataIntervalTimetable(pipeline.schedule, timezone=pipeline.timezone)
    found = timetable.infer_manual_data_interval(run_after=pendulum.instance(instant))
    return _plain(found.start), _plain(found.end)


def as_instant(given: str, timezone: str) -> datetime:
    """:raises SpecError: where it is no date or instant of ISO 8601"""
    try:
        instant = datetime.fromisoformat(given)
    except ValueError as error:
        raise SpecError(f"--as-of {given}: {error}; write it as 2013-02-09 or 2013-02-09T05:00:00Z") from None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=ZoneInfo(timezone))


def _plain(instant: datetime) -> datetime:
    """As Airflow hands it to a task."""
    return datetime.fromtimestamp(instant.timestamp(), UTC)
