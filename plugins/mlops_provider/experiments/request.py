"""What a person asks for, on the command line, in Airflow's trigger form or by REST."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from types import MappingProxyType
from typing import Any, Final
from zoneinfo import ZoneInfo

import pendulum
import yaml
from airflow.timetables.interval import CronDataIntervalTimetable

from mlops.contract.extensions import is_of_recipe
from mlops.contract.section import SpecError, leaves
from mlops.contract.step import EXPERIMENT_STEPS
from mlops_provider.deployment import Deployment
from mlops_provider.experiments.arguments import SPIN
from mlops_provider.experiments.names import RECIPES
from mlops_provider.operators.runs import interval_before
from mlops_provider.pod_spec import ALL
from mlops_provider.section_file import KeyPath
from mlops_provider.spec import Pipeline
from mlops_provider.team_spec import below

_SOURCES: Final = ("ingest", "sources")
_WEIGHTS: Final = ("train", "initialise")
_READ: Final = (_SOURCES, (*_WEIGHTS, "model"), (*_WEIGHTS, "found"))
"""First keys of settings that say what is read with the rights of the deployment."""
_RESUMED: Final = ("train", "resume_from")
_PLACE_OF_SOURCE: Final = 4
"""Keys of ``ingest.sources.NAME.path``."""
_OUTWARD: Final = frozenset({"connection", "path", "schema_path", "url"})
"""Keys of others."""
_RESOURCES: Final = frozenset({"cpu", "ephemeral_storage", "gpu_type", "gpus", "memory", "scratch", "shared_memory"})
"""Of pods: what they ask the cluster for, and nothing of what they may read."""
_SKEW: Final = timedelta(minutes=5)
"""By which the clocks of Airflow's machines may differ."""
_CODE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]")
"""Begins an import path; what may follow it, such as the ``@10`` of a metric, is the step's to read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What of a pipeline is to be tried out, and how."""

    changes: Mapping[KeyPath, str]
    """Values that take the place of the file's, as YAML."""
    as_of: str | None = None
    """The newest data interval that had ended by then: a date or an instant of ISO 8601; None: now."""
    dataset: str | None = None
    """Version of the snapshot to start from, or its beginning; None: one is taken, or found."""
    until: str = EXPERIMENT_STEPS[-1]
    """The last step."""
    seeds: int = 1
    """How many; they count from the pipeline's own."""
    name: str | None = None
    """Keeps the results apart from those of other names."""
    launcher: str | None = None
    """None: the pipeline's own."""
    fields: Mapping[KeyPath, str] = field(default_factory=dict)
    """Of a request by REST, those by which some changes were given, and not by ``settings``."""
    recipes: Mapping[str, str] = field(default_factory=dict)
    """Digests of code that is sent with it, by the recipe's folder ``include/<name>``."""
    is_remote: bool = False
    """Whether the deployment does it, with its own rights, and not the person's machine."""

    @classmethod
    def of_options(cls, options: argparse.Namespace) -> Request:
        """
        :param options: of ``mlops run``
        :raises SpecError: naming the option, its value and the fix
        """
        sample = [] if options.sample is None else [f"features.sample={options.sample}"]
        return cls(
            changes=changes_of([*options.set, *sample]),
            as_of=options.as_of,
            dataset=options.dataset,
            until=options.until,
            seeds=options.seeds,
            name=options.name,
            launcher=options.launcher,
        )

    @classmethod
    def of_params(cls, params: Mapping[str, Any], fields: Mapping[str, str] = MappingProxyType({})) -> Request:
        """
        :param params: of a run of Airflow, see :func:`mlops_provider.experiments.dags.parameters`
        :param fields: of a request, in which settings were given, for messages
        :raises SpecError: naming the setting, its value and the fix
        """
        sample = [] if params["sample"] is None else [("features.sample", params["sample"])]
        given = ((tuple(name.split(".")), _as_yaml(value)) for name, value in [*params["settings"].items(), *sample])
        return cls(
            # Those of a section before those in it: databases give them back in an order of their own.
            changes=_unique(iter(sorted(given, key=lambda each: len(each[0]))), fields=fields),
            as_of=params["as_of"],
            dataset=params["dataset"],
            until=params["until"],
            seeds=params["seeds"],
            name=params["name"],
            fields={tuple(name.split(".")): given_as for name, given_as in fields.items()},
            recipes=params.get(RECIPES) or {},
            is_remote=True,
        )

    def option(self, name: str) -> str:
        """Return the option as the person has written it."""
        if self.is_remote:
            return name
        return "--set" if name == "settings" else f"--{name.replace('_', '-')}"

    def setting(self, keys: Sequence[str]) -> str:
        """Return a setting as the person has named it."""
        for length in range(len(keys), 0, -1):
            if (given_as := self.fields.get(tuple(keys[:length]))) is not None:
                return ".".join((given_as, *keys[length:]))
        return f"{self.option('settings')} {'.'.join(keys)}"

    def checked(self, read: Callable[[Mapping[KeyPath, str]], Pipeline]) -> Pipeline:
        """
        Return the pipeline that is to be tried out.

        :param read: reads the pipeline's file with these changes
        :raises SpecError: where what is asked for is none of the person's business, or a part of it counts for nothing
        """
        pipeline = read(self.changes)
        if self.is_remote:
            deployment = Deployment.load(pipeline.team)
            self._refuse_reach(read({}), pipeline, deployment.experiment_sources)
            self._refuse_code(pipeline, deployment)
        self._refuse_templates(pipeline)
        if self.is_remote and self.name == SPIN:
            raise SpecError(f"{self.option('name')} {SPIN}: there mlops spin puts what it makes; take another name")
        if self.name != SPIN:  # which may have the search's result as input, or not
            self._refuse_searched(pipeline)
        if self.dataset is not None:
            self._refuse_vain(self.dataset)
        if self.until == "tune" and pipeline.tune is None:
            raise SpecError(
                f"{self.option('until')} tune: {pipeline.pipeline} has no search; leave it out, or say "
                f"{self.option('until')} train"
            )
        if self.seeds > 1 and EXPERIMENT_STEPS.index(self.until) < EXPERIMENT_STEPS.index("train"):
            until = f"{self.option('until')} {self.until}"
            raise SpecError(f"{self.option('seeds')}: with {until} nothing is trained; leave one of the two out")
        return pipeline

    def _refuse_vain(self, dataset: str) -> None:
        """:raises SpecError: where something else is asked for that a given snapshot has already settled"""
        given = f"{self.option('dataset')} {dataset}"
        if self.as_of is not None:
            raise SpecError(f"{self.option('as_of')} {self.as_of}: {given} is of an interval of its own; keep one")
        if self.until == "ingest":
            raise SpecError(f"{self.option('until')} ingest: with {given} nothing is left to do; leave one of them out")
        for step, *keys in self.changes:
            if step == "ingest":
                raise SpecError(f"{self.setting((step, *keys))}: {given} is as it was taken; leave one of them out")

    def _refuse_reach(self, before: Pipeline, after: Pipeline, readable: Sequence[str]) -> None:
        """
        Check that the deployment, which does it for the person, reads and runs what it would for the pipeline.

        :param before: as the file says
        :param after: with the changes
        :param readable: what may be read beside that
        :raises SpecError: naming the setting and the way out
        """
        known, found = dict(_settings(before)), dict(_settings(after))
        for keys in sorted({*known, *found}):
            value = found.get(keys)
            of_source = keys[:2] == _SOURCES
            if keys[:2] == _RESUMED and (start := after.train.resume_from) and start.pipeline == after.pipeline:
                continue
            # What is taken away reads nothing; of a source it may be the login by which it was read.
            if known.get(keys) == value or (keys not in found and not of_source):
                continue
            name = ".".join(keys)
            is_weights = keys == (*_WEIGHTS, "path")
            is_place = is_weights or (of_source and len(keys) == _PLACE_OF_SOURCE and keys[-1] == "path")
            if is_place and (is_weights or keys in known) and isinstance(value, str) and readable:
                self._refuse_elsewhere(self.setting(keys), value, readable)
            elif keys[:2] == _RESUMED and keys in found:
                raise SpecError(
                    f"{self.setting(keys)}={value}: in Airflow an experiment goes on from trainings of its own pipeline"
                )
            elif any(keys[: len(each)] == each for each in _READ) or _OUTWARD & {*name.split(".")}:
                others = ", or have it named in [mlops] experiment_sources of the deployment" if is_place else ""
                raise SpecError(
                    f"{self.setting(keys)}: in Airflow an experiment reads what its pipeline reads; change "
                    f"the pipeline's file, or try it out by mlops run{others}"
                )
            elif isinstance(value, str) and _CODE.match(value.strip()) and not is_of_recipe(value):
                raise SpecError(
                    f"{self.setting(keys)}={value}: in Airflow an experiment runs code of recipes only; "
                    "name code of include/, change the pipeline's file, or try it out by mlops run"
                )

    def _refuse_code(self, pipeline: Pipeline, deployment: Deployment) -> None:
        """:raises SpecError: where code was sent that may not run, or of which none would"""
        known = pipeline.recipes()
        for name in self.recipes:
            if (why := deployment.why_not_code(pipeline.launcher)) is not None:
                raise SpecError(f"recipes.{name}: {why}")
            if name not in known:
                raise SpecError(
                    f"recipes.{name}: {pipeline.pipeline} runs code of {', '.join(known) or 'no recipe'}; send that, "
                    "or leave it out"
                )

    def _refuse_elsewhere(self, name: str, value: str, readable: Sequence[str]) -> None:
        if not below(value, readable):
            raise SpecError(
                f"{name}={value}: experiments may read what lies below "
                f"{', '.join(readable)}: these are experiment_sources, which whoever runs the deployment sets"
            )

    def interval(self, pipeline: Pipeline, now: datetime) -> tuple[datetime, datetime]:
        """
        Return the newest data interval that has ended, in UTC.

        :raises SpecError: where the instant that is asked for is none, or is yet to come
        """
        try:
            return self._interval(pipeline, now)
        except OverflowError:
            raise SpecError(f"{self.option('as_of')} {self.as_of}: there is no data interval before it") from None

    def _interval(self, pipeline: Pipeline, now: datetime) -> tuple[datetime, datetime]:
        zone = ZoneInfo(pipeline.timezone)
        if self.as_of is None:
            end = datetime.combine(pipeline.end_date, time(), zone) if pipeline.end_date is not None else now
            instant = min(now, end)
        else:
            instant = as_instant(self.as_of, pipeline.timezone, self.option("as_of"))
            if instant > now:
                raise SpecError(
                    f"{self.option('as_of')} {self.as_of} is yet to come: what its data will be is not known"
                )
        if pipeline.schedule is None:
            return interval_before(instant, pipeline.timezone, pipeline.ingest.grain)
        timetable = CronDataIntervalTimetable(pipeline.schedule, timezone=pipeline.timezone)
        found = timetable.infer_manual_data_interval(run_after=pendulum.instance(instant))
        return _plain(found.start), _plain(found.end)

    def _refuse_searched(self, pipeline: Pipeline) -> None:
        """What the search finds takes the place of what is given."""
        space = {} if pipeline.tune is None else pipeline.tune.space
        for (step, *keys), value in self.changes.items():
            if step == "train" and (name := ".".join(map(str, keys))) in space:
                raise SpecError(
                    f"{self.setting((step, *keys))}={value}: what tune finds would take its place; add "
                    f"{self.option('settings')} tune=null to train without the search, or narrow tune.space.{name}"
                )

    def _refuse_templates(self, pipeline: Pipeline) -> None:
        """Airflow fills them in, with what only a run of its own has."""
        for keys, value in _settings(pipeline):
            if isinstance(value, str) and ("{{" in value or "{%" in value):
                raise SpecError(
                    f"{'.'.join(keys)} is a template, {value!r}, which a night of Airflow fills in: give it a value by "
                    f"{self.option('settings')} {'.'.join(keys)}=VALUE"
                )


def changes_of(given: Sequence[str]) -> Mapping[KeyPath, str]:
    """
    :param given: ``STEP.KEY=VALUE`` each
    :raises SpecError: where one is not written so, or is given twice
    """

    def split() -> Iterator[tuple[KeyPath, str]]:
        for each in given:
            name, sign, value = each.partition("=")
            keys = tuple(name.strip().split("."))
            if not sign or not all(keys):
                raise SpecError(f"--set {each}: write STEP.KEY=VALUE, such as train.learning_rate=3e-4")
            yield keys, value

    return _unique(split(), "--set")


def _unique(
    given: Iterator[tuple[KeyPath, str]], option: str = "settings", fields: Mapping[str, str] = MappingProxyType({})
) -> Mapping[KeyPath, str]:
    changes: dict[KeyPath, str] = {}
    for keys, value in given:
        name = ".".join(keys)
        each = f"{fields.get(name) or f'{option} {name}'}={value}"
        if keys[0] == "pods":
            if len(keys) != 3 or keys[1] not in (ALL, *EXPERIMENT_STEPS) or keys[2] not in _RESOURCES:
                raise SpecError(
                    f"{each}: of pods an experiment has {', '.join(sorted(_RESOURCES))} of its own, by step or for "
                    f"{ALL}, such as pods.train.memory"
                )
        elif keys[0] not in EXPERIMENT_STEPS:
            raise SpecError(f"{each}: {keys[0]!r} is no step of an experiment; these are {', '.join(EXPERIMENT_STEPS)}")
        if keys in changes:
            raise SpecError(f"{each}: {'.'.join(keys)} is given twice; keep one")
        changes[keys] = value
    return changes


def _as_yaml(value: Any) -> str:
    """Write a value of JSON as YAML that is read as the same value: JSON's ``1e-05`` is a text there."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=math.inf, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _settings(pipeline: Pipeline) -> Iterator[tuple[KeyPath, Any]]:
    yield from leaves(pipeline.model_dump(mode="json", by_alias=True, include={*EXPERIMENT_STEPS, "validate_"}))


def as_instant(given: str, timezone: str, option: str = "--as-of") -> datetime:
    """:raises SpecError: where it is no date or instant of ISO 8601"""
    wanted = "write it as 2013-02-09 or 2013-02-09T05:00:00Z"
    if not given.isprintable() or given != given.strip():  # Python reads over a NUL at the end
        raise SpecError(f"{option} {given!r}: it has spaces around it, or characters that cannot be seen; {wanted}")
    try:
        instant = datetime.fromisoformat(given)
    except ValueError as error:
        raise SpecError(f"{option} {given}: {error}; {wanted}") from None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=ZoneInfo(timezone))


def past_instant(given: str, option: str) -> datetime:
    """:raises SpecError: where it is no instant of ISO 8601, or is yet to come"""
    instant = as_instant(given, "UTC", option)
    if instant > datetime.now(UTC) + _SKEW:
        raise SpecError(f"{option} {given} is yet to come: leave it out")
    return instant


def _plain(instant: datetime) -> datetime:
    """As Airflow hands it to a task."""
    return datetime.fromtimestamp(instant.timestamp(), UTC)
