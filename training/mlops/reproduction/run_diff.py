"""The differences between two trainings: data, code, environment, parameters, metrics."""

from __future__ import annotations

import difflib
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlops.code import recipe_of
from mlops.contract.manifest import Manifest, compare_columns, differing_periods
from mlops.contract.refs import CheckpointRef, DatasetRef, ReportRef
from mlops.contract.settings import replaced_settings
from mlops.data.snapshots.snapshot import Snapshot
from mlops.reproduction.environments import CODE, EnvironmentDifference, compare_environments
from mlops.reproduction.original import Original
from mlops.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A training, with its evaluation if it is a registered version's."""

    name: str
    """Name of the training, as the user gave it."""
    original: Original
    report: ReportRef | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDiff:
    what: str
    a: str
    b: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffPart:
    """One of the things that two trainings may differ in."""

    name: str
    equal: str
    """Sentence on what is equal; not shown if there are differences."""
    differences: Sequence[RunDiff] = ()
    patch: str = ""
    """Unified diff of files, from A to B; empty if they are equal."""

    def __bool__(self) -> bool:
        """Return True if the two trainings differ in this part."""
        return bool(self.differences or self.patch)


def compare_runs(store: Store, a: Run, b: Run) -> list[DiffPart]:
    """Compare two trainings, and return each part, equal or not."""
    return [_data(store, a, b), _code(store, a, b), _environment(a, b), _parameters(a, b), _metrics(a, b)]


def _data(store: Store, a: Run, b: Run) -> DiffPart:
    datasets = [run.original.checkpoint.ancestor(DatasetRef) for run in (a, b)]
    features = [run.original.features for run in (a, b)]
    found = _unequal(
        {
            "features": [ref.version[:12] for ref in features],
            "fitted state": [ref.artifacts["state"].sha256[:12] for ref in features],
            "samples": [_counts(ref.num_samples) for ref in features],
        }
    )
    name = f"{datasets[0].name}@{datasets[0].version[:12]}"
    if datasets[0].version == datasets[1].version:
        equal = f"snapshot {name}, {datasets[0].num_rows:,} rows, and the same features of it"
        return DiffPart(name="data", equal=equal, differences=found)
    before, after = (Snapshot.open(store, dataset).manifest for dataset in datasets)
    columns, periods = compare_columns(before, after), differing_periods(before, after)
    found = [
        *_unequal(
            {
                "snapshot": [f"{dataset.name}@{dataset.version[:12]}" for dataset in datasets],
                "interval": [f"{dataset.interval_start} to {dataset.interval_end}" for dataset in datasets],
                "rows": [f"{dataset.num_rows:,}" for dataset in datasets],
            }
        ),
        *(RunDiff(what=f"column {name}", a="not there", b=dtype) for name, dtype in columns.added.items()),
        *(RunDiff(what=f"column {name}", a=dtype, b="not there") for name, dtype in columns.removed.items()),
        *(RunDiff(what=f"column {name}", a=old, b=new) for name, (old, new) in columns.retyped.items()),
        *(
            RunDiff(what=f"rows of {period}", a=_rows(before, period), b=_rows(after, period))
            for period in periods
        ),
        *found,
    ]  # fmt: skip
    return DiffPart(name="data", equal="", differences=found)


def _code(store: Store, a: Run, b: Run) -> DiffPart:
    commits = [str(run.original.environment["git_commit"]) for run in (a, b)]
    patches = [run.original.checkpoint.artifacts.get("patch") for run in (a, b)]
    library = [item for item in _environments(a, b) if item.kind == CODE]
    files = [_files(store, run.original) for run in (a, b)]
    return DiffPart(
        name="code",
        equal=f"commit {commits[0]}, {len(files[0])} files of the recipe",
        differences=[
            *_unequal(
                {
                    "commit": commits,
                    "patch of it": [patch.sha256[:12] if patch else "none" for patch in patches],
                    "files patched": [", ".join(run.original.changed_files) or "none" for run in (a, b)],
                }
            ),
            *(RunDiff(what=item.kind, a=item.then, b=item.now) for item in library),
        ],
        patch="".join(_unified(files[0], files[1], (a.name, b.name))),
    )


def _environment(a: Run, b: Run) -> DiffPart:
    found = [item for item in _environments(a, b) if item.kind != CODE]
    return DiffPart(
        name="environment",
        equal=f"lock files, {len(a.original.environment['packages'])} packages, hardware class, "
        f"{a.original.environment['world_size']} processes",
        differences=[RunDiff(what=f"{item.kind} {item.name}", a=item.then, b=item.now) for item in found],
    )


def _environments(a: Run, b: Run) -> list[EnvironmentDifference]:
    return compare_environments(a.original.environment, b.original.environment)


def _parameters(a: Run, b: Run) -> DiffPart:
    settings = [
        dict(_flat({"features": run.original.features_input.config, "train": _trained_with(run.original)}))
        for run in (a, b)
    ]
    return DiffPart(
        name="parameters",
        equal=f"{len(settings[0])} settings of features and train, seed {a.original.checkpoint.seed}",
        differences=_of_mappings(*settings),
    )


def _trained_with(original: Original) -> Mapping[str, Any]:
    """Return the settings of a training, with those that a study has found."""
    return replaced_settings(original.train_input.config, original.checkpoint.found)


def _metrics(a: Run, b: Run) -> DiffPart:
    evaluated = [run.name for run in (a, b) if run.report]
    # That only one was evaluated is no difference between the two trainings.
    reports = [run.report if len(evaluated) == 2 else None for run in (a, b)]
    measured = [_measured(run.original.checkpoint, report) for run, report in zip((a, b), reports, strict=True)]
    names = ", ".join(name for name in measured[0] if name != "best epoch")
    said = f"; only {evaluated[0]} has an evaluation" if len(evaluated) == 1 else ""
    return DiffPart(name="metrics", equal=f"to the last bit: {names}{said}", differences=_of_mappings(*measured))


def _measured(checkpoint: CheckpointRef, report: ReportRef | None) -> dict[str, Any]:
    return {
        "best epoch": checkpoint.epoch,
        **{f"validation {name}": value for name, value in checkpoint.metrics.items()},
        **{f"test {name}": value for name, value in (report.metrics if report else {}).items()},
    }


def _of_mappings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[RunDiff]:
    return [
        RunDiff(what=name, a=_text(a.get(name, "not there")), b=_text(b.get(name, "not there")))
        for name in [*a, *(name for name in b if name not in a)]
        if name not in a or name not in b or a[name] != b[name]
    ]


def _unequal(pairs: Mapping[str, Sequence[str]]) -> list[RunDiff]:
    return [RunDiff(what=what, a=a, b=b) for what, (a, b) in pairs.items() if a != b]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _files(store: Store, original: Original) -> dict[str, list[str]]:
    """Return the lines of the recipe's files, by path; of two recipes if features and model are in different ones."""
    files: dict[str, list[str]] = {}
    for ref, import_path in (
        (original.features, original.features_input.config["feature_set"]),
        (original.checkpoint, original.trained_recipe),
    ):
        folder = "/".join(recipe_of(import_path))
        with zipfile.ZipFile(io.BytesIO(store.read(ref.artifacts["code"]))) as archive:
            for name in archive.namelist():
                files[f"{folder}/{name}"] = archive.read(name).decode(errors="replace").splitlines(keepends=True)
    return files


def _unified(a: Mapping[str, list[str]], b: Mapping[str, list[str]], names: tuple[str, str]) -> Iterator[str]:
    for path in sorted(a.keys() | b.keys()):
        before, after = (f"{path} ({name})" for name in names)
        for line in difflib.unified_diff(a.get(path, []), b.get(path, []), before, after):
            yield line if line.endswith("\n") else f"{line}\n"


def _rows(manifest: Manifest, period: str) -> str:
    return f"{sum(part.num_rows for part in manifest.partitions if part.period == period):,}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def _text(value: Any) -> str:
    return str(value) if value is not None else "none"
