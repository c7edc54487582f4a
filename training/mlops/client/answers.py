"""What the server answers, as a notebook shows it."""

from __future__ import annotations

from collections.abc import Sequence

from mlops.client import pages
from mlops.contract import rest


class RunSummary(rest.RunSummary):
    """A run; ``airflow`` is the whole address of its page."""

    def _repr_html_(self) -> str:
        return pages.of_summary(self)


class Run(rest.Run):
    """A run, and what has come out of it so far; ``airflow`` is the whole address of its page."""

    def _repr_html_(self) -> str:
        return pages.of_run(self)


class StartedRun(rest.StartedRun):
    """A run that changes the registry, or may; ``airflow`` is the whole address of its page."""

    def _repr_html_(self) -> str:
        return pages.of_started(self)


class Runs(list[RunSummary]):
    """Runs, the newest first."""

    def _repr_html_(self) -> str:
        return pages.of_runs(self)


class Study(rest.Study):
    """A search, and what it has found so far; ``airflow`` is the whole address of its page."""

    def _repr_html_(self) -> str:
        return pages.of_study(self)


class Trials(list[rest.Trial]):
    """The trials of a search that have ended, by their numbers."""

    def _repr_html_(self) -> str:
        return pages.of_trials(self)


class Checkpoints(list[rest.Checkpoint]):
    """The whole checkpoints of a run's trainings, the newest of each first."""

    def _repr_html_(self) -> str:
        return pages.of_table(
            self, ("id", "step", "epoch", "is_end_of_epoch", "validation", "is_best", "saved_at", "num_bytes")
        )


class Events(list[rest.Event]):
    """What happened to a run, in that order."""

    def _repr_html_(self) -> str:
        return pages.of_table(self, ("at", "kind", "said", "task", "node"))


class Datasets(list[rest.Dataset]):
    """The datasets of the pipelines that one may read."""

    def _repr_html_(self) -> str:
        return pages.of_table(self, ("name", "num_snapshots", "newest"))


class Snapshots(list[rest.SnapshotSummary]):
    """The snapshots of a dataset, the newest first."""

    def _repr_html_(self) -> str:
        return pages.of_table(self, ("version", "interval_end", "num_rows", "num_bytes", "committed_at", "deprecated"))


class Snapshot(rest.Snapshot):
    """What is in a snapshot, and where it came from."""

    def _repr_html_(self) -> str:
        return pages.of_snapshot(self)


class SnapshotDifference(rest.SnapshotDifference):
    """In what two snapshots differ."""

    def _repr_html_(self) -> str:
        return pages.of_difference(self)


class VersionDifference(rest.TrainingDifference):
    """In what two versions of a model differ."""

    def _repr_html_(self) -> str:
        return pages.of_version_difference(self)


class ModelVersion(rest.ModelVersion):
    """A version of a model, and where it came from."""

    def _repr_html_(self) -> str:
        return pages.of_version(self)


class StageAnswer(rest.StageAnswer):
    """How far a version is on its way into production; ``question`` and ``airflow`` are whole addresses."""

    def _repr_html_(self) -> str:
        return pages.of_stage(self)


class Models(list[rest.Model]):
    """The models of the pipelines that one may read."""

    def _repr_html_(self) -> str:
        return pages.of_table(self, ("name", "pipeline", "aliases"))


class ModelVersions(list[rest.ModelVersionSummary]):
    """The versions of a model, the newest first."""

    def _repr_html_(self) -> str:
        return pages.of_table(self, ("version", "semantic_version", "stage", "registered_at", "reason"))


class Tonight(list[rest.PipelineTonight]):
    """How the pipelines stand that one may read, those that need a person first; addresses are whole ones."""

    def _repr_html_(self) -> str:
        return pages.of_table(self, ("name", "standing", "said", "since", "next_run"))


class Nights(list[rest.Night]):
    """What came of a pipeline's own runs, the newest first; addresses are whole ones."""

    def _repr_html_(self) -> str:
        return pages.of_table(self, ("begun_at", "standing", "said"))


class Progress(list[rest.TrainingProgress]):
    """How far the trainings of a run are that go on."""

    def _repr_html_(self) -> str:
        return pages.of_table(self, ("name", "step", "num_steps", "loss", "seconds_left", "goodput", "told_at"))


class Verdict(rest.Verdict):
    """What came of a pipeline's own run, whether production is safe, and what to do next."""

    def _repr_html_(self) -> str:
        return pages.of_verdict(self)


class Curves(list[rest.Curve]):
    """The curves of a run's trainings."""

    def _repr_html_(self) -> str:
        return pages.of_curves(self)

    @classmethod
    def of(cls, values: Sequence[rest.Value]) -> Curves:
        """
        Draw up the curves of points.

        :param values: as a stream tells them: each curve's by steps
        """
        return cls(rest.Curves.of(values).curves)
