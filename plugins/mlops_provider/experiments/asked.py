"""A pipeline as somebody wants to try it out."""

from __future__ import annotations

import difflib
import getpass
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from airflow.sdk import DAG

from mlops.contract.refs import Ref
from mlops.contract.section import SpecError
from mlops.contract.sections.tune import Tune
from mlops.contract.step import EXPERIMENTS
from mlops_provider.connections import store_of
from mlops_provider.deployment import Deployment
from mlops_provider.experiments.budget import Budget
from mlops_provider.experiments.inputs import snapshot
from mlops_provider.experiments.names import experiment_name, person_of
from mlops_provider.experiments.request import Request
from mlops_provider.factory import build_dag
from mlops_provider.launcher_names import LAUNCHERS
from mlops_provider.patience import store_errors
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import SUFFIX, load_pipeline, pipeline_files


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A pipeline, with other settings perhaps, as of an instant."""

    pipeline: Pipeline
    dag: DAG
    name: str
    """See :func:`mlops_provider.experiments.names.experiment_name`."""
    interval: tuple[datetime, datetime]
    """The data interval, in UTC."""
    until: str
    """The last step, of :data:`mlops_provider.experiments.arguments.STEPS`."""
    seeds: Sequence[int]
    """Of the trainings, one after the other; none: the one of the settings."""
    recipes: Mapping[str, str] = field(default_factory=dict)
    """Digests of code that was sent with it, by the recipe's folder."""
    dataset: str | None = None
    """Version of the snapshot to start from, or its beginning, as it was asked for."""
    snapshot: Ref | None = None
    """The same, once it is found; None: the pipeline takes one, or finds it."""

    @property
    def place(self) -> str:
        """In the store, of what no run of the pipeline has made."""
        return f"{EXPERIMENTS}/{self.name}"

    @property
    def search(self) -> Tune:
        """Of a pipeline that has one."""
        assert self.pipeline.tune is not None, "there is a search"
        return self.pipeline.tune

    @classmethod
    def of(cls, path: Path, request: Request, person: str, now: datetime) -> Experiment:
        """
        :param path: of the pipeline's file
        :param person: who asks, as a name in the store
        :raises SpecError: naming what was asked for, its value and the fix
        """
        pipeline = request.checked(lambda changes: load_pipeline(path, changes, request.option("settings")))
        launched = pipeline if request.launcher is None else _launched_by(request.launcher, pipeline)
        dag = _dag_of(launched, str(path))
        first, number = pipeline.train.seed, request.seeds
        return cls(
            pipeline=launched,
            dag=dag,
            name=experiment_name(person, pipeline.pipeline, request.name),
            interval=request.interval(pipeline, now),
            dataset=request.dataset,
            recipes=request.recipes,
            until=request.until,
            seeds=range(first, first + number) if number > 1 else [],
        )

    def with_snapshot(self, deployment: Deployment) -> Experiment:
        """
        Return the same, with the snapshot that it starts from where it was asked to start from one.

        :raises SpecError: where the pipeline has no such snapshot, nor a person's experiments with it
        :raises StepRetryableError: where the store does not answer
        """
        if self.dataset is None:
            return self
        person = self.name.partition("/")[0]
        with store_errors(deployment.store, f"dataset {self.dataset} cannot be looked up"):
            found = snapshot(store_of(deployment), self.pipeline.pipeline, person, self.dataset)
        return replace(self, snapshot=found.ref, interval=found.interval)

    def with_budget(self, budget: Budget, num_begun: int) -> Experiment:
        """
        Return the same, whose search has another budget.

        :param num_begun: trials that have begun
        """
        pipeline = self.pipeline.model_copy(update={"tune": budget.of(self.search, num_begun)})
        return replace(self, pipeline=pipeline, dag=_dag_of(pipeline, self.dag.fileloc))


def _dag_of(pipeline: Pipeline, path: str) -> DAG:
    dag = build_dag(pipeline)
    # As Airflow does: a team's tasks are checked by the file that they come from.
    dag.fileloc = path
    return dag


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
    return person_of(login)


def file_of(pipeline: str, folder: Path) -> Path:
    """
    Find the file of a pipeline.

    :param pipeline: its name, or the file itself
    :param folder: where the pipelines lie
    :raises SpecError: naming what there is
    """
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
