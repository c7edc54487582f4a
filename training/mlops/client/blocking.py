"""The client, for programs that wait for each answer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from httpx_sse import EventSource

from mlops.client import calls, following, model_calls
from mlops.client.answers import (
    Checkpoints,
    Curves,
    Datasets,
    Events,
    Models,
    ModelVersion,
    ModelVersions,
    Nights,
    Progress,
    Run,
    Runs,
    RunSummary,
    Snapshot,
    SnapshotDifference,
    Snapshots,
    StageAnswer,
    StartedRun,
    Study,
    Tonight,
    Trials,
    Verdict,
    VersionDifference,
)
from mlops.client.calls import AnyCheckpoint, AnyRun, AnySnapshot
from mlops.client.connection import Connection
from mlops.client.following import CUTS, Looks, Position
from mlops.client.notebook import Picture
from mlops.client.session import State
from mlops.contract.rest import FINISHED, RunKind, Value
from mlops.contract.stages import CHAMPION, PRODUCTION

T = TypeVar("T")


class Client(Connection):
    """
    :param url: root of Airflow's API server, such as ``http://127.0.0.1:8080``
    :param user: of Airflow; None where it lets everybody in, or a token is given
    :param password: of the user
    :param token: of Airflow's API, where somebody else has logged in
    :raises ClientError: of each method, where the server refuses or cannot be reached; its message says what would do
    """

    def submit(
        self,
        pipeline: str,
        *,
        settings: Mapping[str, Any] | None = None,
        as_of: str | date | None = None,
        dataset: AnySnapshot | None = None,
        until: str | None = None,
        seeds: int | None = None,
        sample: float | None = None,
        name: str | None = None,
        priority: str | None = None,
        spec: Mapping[str, Any] | None = None,
        recipes: Sequence[str | Path] = (),
        idempotency_key: str | None = None,
    ) -> RunSummary:
        """
        Have Airflow try a pipeline out, from snapshot to evaluation; nothing is registered.

        :param pipeline: its name
        :param settings: other values for settings, by their name in the pipeline's file: ``train.learning_rate``
        :param as_of: of the data: the newest data interval that had ended by then, a date or an instant of ISO 8601;
            now, if not given
        :param dataset: start from this snapshot of the pipeline, or of your experiments with it, in place of one of
            ``as_of``: its version, or the beginning, of six characters at least
        :param until: the last step; ``evaluate``, if not given
        :param seeds: train and evaluate with so many seeds
        :param sample: train on a share of the samples, such as 0.1
        :param name: keeps the results apart from those of other names
        :param priority: ``low``: where more runs of the pipeline wait than may run, it begins when no other one waits
        :param spec: a whole pipeline, as a file has it, whose steps count in place of those that Airflow has;
            ``settings`` count on top
        :param recipes: folders ``include/NAME`` whose code counts in place of that in Airflow, if that takes any
        :param idempotency_key: your requests of a pipeline with one key are one run; if not given, each call is one
        """
        asked = {"until": until, "seeds": seeds, "sample": sample, "name": name, "priority": priority}
        called = calls.submit(pipeline, settings, spec, recipes, as_of, dataset, idempotency_key, **asked)
        return self._do(called)

    def search(
        self,
        pipeline: str,
        space: Mapping[str, Mapping[str, Any]],
        *,
        metric: str | None = None,
        trials: int | None = None,
        parallel: int | None = None,
        sampler: str | None = None,
        pruner: str | None = None,
        settings: Mapping[str, Any] | None = None,
        as_of: str | date | None = None,
        dataset: AnySnapshot | None = None,
        name: str | None = None,
        priority: str | None = None,
        idempotency_key: str | None = None,
    ) -> RunSummary:
        """
        Have Airflow search for the settings of a training, by trials; :meth:`wait` and the like are for it too.

        :param space: by the setting of ``train`` a range, ``{"low": 1e-4, "high": 1e-2, "log": True}``, or
            ``{"choices": [32, 64]}``
        :param metric: that is searched by; the pipeline's, if not given. So are those that follow
        :param trials: at most so many
        :param parallel: trials at once
        :param settings: see :meth:`submit`, as all that follow
        """
        asked = {"metric": metric, "trials": trials, "parallel": parallel, "sampler": sampler, "pruner": pruner}
        asked |= {"name": name, "priority": priority}
        return self._do(calls.search(pipeline, space, settings, as_of, dataset, idempotency_key, **asked))

    def study(self, run: AnyRun) -> Study:
        """Return a search, and what it has found so far."""
        return self._do(calls.study(run))

    def change_budget(
        self, run: AnyRun, *, trials: int | None = None, hours: float | None = None, gpu_hours: float | None = None
    ) -> Study:
        """
        Let a search that runs cost more or less; it counts when the next trial would begin.

        :param trials: at most so many in all; those that have begun count. What is not given stays as it is
        :param hours: no trial begins so long after the first one has
        :param gpu_hours: no trial begins when all together have computed for so long
        """
        return self._do(calls.change_budget(run, trials=trials, hours=hours, gpu_hours=gpu_hours))

    def stop_search(self, run: AnyRun) -> Study:
        """Let no more trials begin: those that have come to their end, and the search concludes by what there is."""
        return self._do(calls.stop_search(run))

    def trials(self, run: AnyRun) -> Trials:
        """Return the trials of a search that have ended, by their numbers."""
        return self._do(calls.trials(run))

    def run(self, run: AnyRun) -> Run:
        """Return a run, and what has come out of it so far."""
        return self._do(calls.run(run))

    def runs(
        self,
        pipeline: str | None = None,
        *,
        kind: RunKind = "experiment",
        user: str | None = None,
        state: State | None = None,
        most: int = 100,
    ) -> Runs:
        """
        List runs, the newest first.

        :param kind: nights are those of one pipeline
        :param user: who asked for them
        :param most: so many of them
        """
        listing = self._session.listing(lambda cursor: calls.runs(pipeline, kind, user, state, cursor), most)
        return Runs(self._run(listing))

    def cancel(self, run: AnyRun) -> RunSummary:
        """End a run: its processes and pods end within seconds, and what is committed stays."""
        return self._do(calls.cancel(run))

    def logs(self, run: AnyRun, *, task: str | None = None, try_number: int | None = None, map_index: int = -1) -> str:
        """
        Return what a task has written so far.

        :param task: of a night
        :param try_number: the newest one, if not given
        """
        return self._do(calls.logs(run, task, try_number, map_index))

    def curves(self, run: AnyRun, *, metrics: Sequence[str] | str = (), points: int | None = None) -> Curves:
        """
        Return the curves of a run's trainings so far.

        :param metrics: their names; all, if none is given
        :param points: at most, of each curve
        """
        return self._do(calls.curves(run, metrics, points))

    def watch(self, run: AnyRun) -> Iterator[list[Value]]:
        """Yield what is new each time that values were logged, those of before first, until the run has ended."""
        return (values for values in self._news(run) if values)

    def _news(self, run: AnyRun) -> Iterator[list[Value]]:
        """Of :meth:`watch`; empty each time that a stream has been opened and has ended."""
        position = Position(run)
        while not position.has_ended:
            pause = following.REOPEN_SECONDS
            try:
                with closing(self._do(position.call())) as response:
                    yield []
                    for event in EventSource(response).iter_sse():
                        if values := position.read(event):
                            yield values
                position.heard()
            except CUTS as error:
                position.check(error)
                pause = following.PAUSE_SECONDS
            yield position.rest()
            if not position.has_ended:
                time.sleep(pause)

    def wait(self, run: AnyRun, timeout_seconds: float | None = None) -> Run:
        """
        Wait until a run has ended.

        :raises TimeoutError: where it has not by then; it goes on
        """
        looks = Looks(run, self._session.has_answered, timeout_seconds)
        while True:
            try:
                if (found := self._do(looks.call())).state in FINISHED:
                    return found
                pause = looks.pause()
            except CUTS as error:
                pause = looks.pause(error)
            time.sleep(pause)

    def events(self, run: AnyRun) -> Events:
        """List what happened to a run so far: to its tasks, and to its trainings."""
        return self._do(calls.events(run))

    def checkpoints(self, run: AnyRun) -> Checkpoints:
        """List the whole checkpoints of a run's trainings, the newest of each first."""
        return self._do(calls.checkpoints(run))

    def restore(
        self,
        checkpoint: AnyCheckpoint,
        *,
        settings: Mapping[str, Any] | None = None,
        name: str | None = None,
        idempotency_key: str | None = None,
    ) -> RunSummary:
        """
        Have Airflow go on from a checkpoint in a training of its own, with the optimizer's state and the place in the
        data.

        :param checkpoint: one, as :meth:`checkpoints` lists them, or its id
        :param settings: other values than those of the training that it is of, such as ``train.epochs``
        :param name: see :meth:`submit`, as for ``idempotency_key``
        """
        return self._do(calls.restore(checkpoint, settings, name, idempotency_key))

    def datasets(self) -> Datasets:
        """List the datasets of the pipelines that you may read."""
        return self._do(calls.datasets())

    def snapshots(self, dataset: str, *, most: int = 100) -> Snapshots:
        """
        List the snapshots of a dataset, the newest first.

        :param dataset: the pipeline's name
        :param most: so many of them
        """
        listing = self._session.listing(lambda cursor: calls.snapshots(dataset, cursor), most)
        return Snapshots(self._run(listing))

    def snapshot(self, dataset: str, version: AnySnapshot) -> Snapshot:
        """
        Return what is in a snapshot, and where it came from.

        :param version: the snapshot, or its version, of which the first six characters do
        """
        return self._do(calls.snapshot(dataset, version))

    def compare(self, dataset: str, before: AnySnapshot, after: AnySnapshot) -> SnapshotDifference:
        """Return in which columns and periods two snapshots differ."""
        return self._do(calls.compare(dataset, before, after))

    def tonight(self) -> Tonight:
        """List how the pipelines stand that you may read, those that need a person first."""
        return self._do(model_calls.tonight())

    def nights(self, pipeline: str, *, most: int = 30) -> Nights:
        """List what came of a pipeline's own runs, the newest ``most``, which are 100 at most."""
        return self._do(model_calls.nights(pipeline, most))

    def progress(self, run: AnyRun) -> Progress:
        """Say how far the trainings of a run are that go on: steps, loss, time left, goodput."""
        return self._do(model_calls.progress(run))

    def verdict(self, run: AnyRun) -> Verdict:
        """Say what came of a pipeline's own run, whether production is safe, and the one thing to do next."""
        return self._do(model_calls.verdict(run))

    def models(self) -> Models:
        """List the registered models of the pipelines that you may read."""
        return self._do(model_calls.models())

    def model_versions(self, model: str, *, most: int = 100) -> ModelVersions:
        """
        List the versions of a model, the newest first.

        :param most: so many of them
        """
        listing = self._session.listing(lambda cursor: model_calls.model_versions(model, cursor), most)
        return ModelVersions(self._run(listing))

    def model_version(self, model: str, version: str | int = CHAMPION) -> ModelVersion:
        """Return a version of a model, by number or alias, and its lineage back to the snapshot."""
        return self._do(model_calls.model_version(model, version))

    def compare_versions(self, model: str, before: str | int, after: str | int = CHAMPION) -> VersionDifference:
        """Return in what two versions differ, by number or alias: data, code, environment, parameters, metrics."""
        return self._do(model_calls.compare_versions(model, before, after))

    def register(self, model: str, run: AnyRun, *, training: str | None = None) -> StartedRun:
        """
        Have a pipeline judge a training of an experiment: a run of its own evaluates it, registers it if it passes, and
        asks the approvers. The same training is the same run, however often it is asked for.

        :param model: that the pipeline registers
        :param run: the experiment, which has ended well
        :param training: its place, or the last part of it, where the experiment had several
        """
        return self._do(model_calls.register(model, run, training))

    def register_artifact(
        self,
        model: str,
        uri: str,
        *,
        sha256: str | None = None,
        version: str | None = None,
        metrics: Mapping[str, float] | None = None,
        pipeline: str | None = None,
        as_of: str | date | None = None,
        idempotency_key: str | None = None,
    ) -> StartedRun:
        """
        Have a pipeline judge weights that were trained elsewhere, as those of a training of its own.

        :param model: that the pipeline registers
        :param uri: of a file with weights as the pipeline's checkpoints have them
        :param sha256: of that file; if not given, it is taken as it is when it is first read
        :param version: what they are called where they come from
        :param metrics: as whoever has trained them says; they are kept as said
        :param pipeline: the one that has registered the model's newest version, if not given
        :param as_of: on which data they are judged, as of :meth:`submit`
        """
        said = {"sha256": sha256, "version": version, "metrics": metrics, "pipeline": pipeline}
        return self._do(model_calls.register_artifact(model, uri, as_of, idempotency_key, **said))

    def ask_stage(self, model: str, version: str | int, stage: str = PRODUCTION) -> StageAnswer:
        """
        Ask for a version to be in a stage. It moves nothing: the people whom the pipeline names decide, in Airflow's
        form, whose address comes back.

        :param version: its number or an alias
        :param stage: ``production``; what leads to others is said by the error
        """
        return self._do(model_calls.ask_stage(model, version, stage))

    def rollback(
        self, model: str, why: str, *, champion: str | int | None = None, idempotency_key: str | None = None
    ) -> StartedRun:
        """
        Have Airflow put the former champion of a model into production again, and archive the present one.

        :param why: for the audit trail
        :param champion: the version to take back, if it is in production then; the one that is now, if not given
        :param idempotency_key: your requests with one key are one run; if not given, each call is one
        """
        return self._do(model_calls.rollback(model, why, champion, idempotency_key))

    def show(self, run: AnyRun, *, metrics: Sequence[str] | str = ()) -> None:
        """
        Show a run in a notebook: its curves as they grow, until it has ended.

        :param metrics: their names; all, if none is given
        """
        picture = Picture(self.run(run), metrics)
        for values in self._news(run):
            picture.add(values, None if values else self._seen(run))
        picture.finish(self.wait(run))

    def _seen(self, run: AnyRun) -> Run | None:
        """A run, where it can be seen; what cannot be is told by its stream."""
        with suppress(*CUTS):
            return self.run(run)
        return None
