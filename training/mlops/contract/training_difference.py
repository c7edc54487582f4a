"""In what two trainings differ: data, code, environment, parameters, metrics. Pure functions of what the store has."""

from __future__ import annotations

import difflib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from mlops.contract.environments import ABSENT, CODE, EnvironmentDifference, compare_environments
from mlops.contract.extensions import recipe_of
from mlops.contract.manifest import Manifest, compare_columns, differing_periods
from mlops.contract.refs import INPUT, MANIFEST, Artifact, CheckpointRef, DatasetRef, FeaturesRef, Ref, ReportRef
from mlops.contract.rest import Difference, DifferencePart, PartName
from mlops.contract.settings import flat_settings, replaced_settings
from mlops.contract.step import BadConfigError, StepInput

_MOST_LINES: Final = 5000
"""Of a file: the time that a comparison takes may grow with their square."""
_ENVIRONMENT: Final = "environment"
_BUNDLE: Final = "code"
_ARTIFACTS: Final[Mapping[type[CheckpointRef | FeaturesRef | DatasetRef], Sequence[str]]] = {
    CheckpointRef: (INPUT, _ENVIRONMENT, _BUNDLE),
    FeaturesRef: (INPUT, _BUNDLE),
    DatasetRef: (MANIFEST,),
}
"""What is read of each, of the lineage of a training."""


def what_to_read(checkpoint: CheckpointRef) -> list[Artifact]:
    """
    Return the objects from which :meth:`ComparedTraining.of` tells what a training was made of.

    :raises BadConfigError: where a release made it that did not keep all of them
    """
    return [kept_artifact(ref, name) for ref, name in _needed(checkpoint)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedTraining:
    """What a training was made of, and what came of it."""

    checkpoint: CheckpointRef
    report: ReportRef | None
    """Its evaluation, of a registered version's."""
    settings: Mapping[str, Any]
    """Of features and train, with those that a study has found; named as in :func:`flat_settings`."""
    environment: Mapping[str, Any]
    manifest: Manifest
    """Of its snapshot."""
    files: Mapping[str, bytes]
    """Of its recipe, by path; of two recipes if features and model are in different ones."""

    @classmethod
    def of(cls, checkpoint: CheckpointRef, report: ReportRef | None, objects: Mapping[str, bytes]) -> Self:
        """
        :param objects: bytes of :func:`what_to_read`, by key
        :raises BadConfigError: where another release made its snapshot
        """
        content = {(type(ref), name): objects[kept_artifact(ref, name).key] for ref, name in _needed(checkpoint)}
        trained, featured = (
            StepInput.load(content[kind, INPUT].decode()).config for kind in (CheckpointRef, FeaturesRef)
        )
        recipes = {FeaturesRef: featured["feature_set"], CheckpointRef: trained["model"] or featured["feature_set"]}
        return cls(
            checkpoint=checkpoint,
            report=report,
            settings=flat_settings(
                {"features": featured, "train": replaced_settings(trained, checkpoint.found)}
            ),
            environment=json.loads(content[CheckpointRef, _ENVIRONMENT]),
            manifest=_manifest(content[DatasetRef, MANIFEST], checkpoint.ancestor(DatasetRef)),
            files={
                f"{'/'.join(recipe_of(import_path))}/{name}": data
                for kind, import_path in recipes.items()
                for name, data in _unpacked(content[kind, _BUNDLE])
            },
        )  # fmt: skip

    @property
    def dataset(self) -> DatasetRef:
        return self.checkpoint.ancestor(DatasetRef)

    @property
    def features(self) -> FeaturesRef:
        return self.checkpoint.ancestor(FeaturesRef)


def differences(a: ComparedTraining, b: ComparedTraining, names: tuple[str, str]) -> list[DifferencePart]:
    """
    Compare two trainings, and return each part, equal or not.

    :param names: of both, as the user gave them
    """
    return [_data(a, b), _code(a, b, names), _environment(a, b), _parameters(a, b), _metrics(a, b, names)]


def _needed(checkpoint: CheckpointRef) -> Iterator[tuple[Ref, str]]:
    for kind, names in _ARTIFACTS.items():
        ref = checkpoint if kind is CheckpointRef else checkpoint.ancestor(kind)
        yield from ((ref, name) for name in names)


def kept_artifact(ref: Ref, name: str) -> Artifact:
    """
    Return an artifact that it takes to make a result again.

    :raises BadConfigError: where an earlier release made the result, which did not keep it
    """
    if name not in ref.artifacts:
        raise BadConfigError(
            f"{ref.place} holds no {name}: an earlier release made it, which did not keep what it takes to make it "
            "again. Run the pipeline once more; the model of that run can be reproduced"
        )
    return ref.artifacts[name]


def _manifest(data: bytes, dataset: DatasetRef) -> Manifest:
    try:
        return Manifest.from_json(data)
    except ValueError as error:
        raise BadConfigError(f"{dataset.artifacts[MANIFEST].key} is {error}") from None


def _data(a: ComparedTraining, b: ComparedTraining) -> DifferencePart:
    datasets, features = (a.dataset, b.dataset), (a.features, b.features)
    of_features = _unequal(
        {
            "features": [ref.version[:12] for ref in features],
            "fitted state": [ref.artifacts["state"].sha256[:12] for ref in features],
            "samples": [_counts(ref.num_samples) for ref in features],
        }
    )
    name = f"{datasets[0].name}@{datasets[0].version[:12]}"
    if datasets[0].version == datasets[1].version:
        equal = f"snapshot {name}, {datasets[0].num_rows:,} rows, and the same features of it"
        return _part("data", equal, of_features)
    columns = compare_columns(a.manifest, b.manifest)
    found = [
        *_unequal(
            {
                "snapshot": [f"{dataset.name}@{dataset.version[:12]}" for dataset in datasets],
                "interval": [f"{dataset.interval_start} to {dataset.interval_end}" for dataset in datasets],
                "rows": [f"{dataset.num_rows:,}" for dataset in datasets],
            }
        ),
        *(Difference(what=f"column {name}", before=ABSENT, after=dtype) for name, dtype in columns.added.items()),
        *(Difference(what=f"column {name}", before=dtype, after=ABSENT) for name, dtype in columns.removed.items()),
        *(Difference(what=f"column {name}", before=old, after=new) for name, (old, new) in columns.retyped.items()),
        *(
            Difference(what=f"rows of {period}", before=_rows(a.manifest, period), after=_rows(b.manifest, period))
            for period in differing_periods(a.manifest, b.manifest)
        ),
    ]
    return _part("data", "", [*found, *of_features])


def _code(a: ComparedTraining, b: ComparedTraining, names: tuple[str, str]) -> DifferencePart:
    commits = [str(each.environment["git_commit"]) for each in (a, b)]
    patches = [each.checkpoint.artifacts.get("patch") for each in (a, b)]
    library = [item for item in _environments(a, b) if item.kind == CODE]
    found = [
        *_unequal(
            {
                "commit": commits,
                "patch of it": [patch.sha256[:12] if patch else "none" for patch in patches],
                "files patched": [", ".join(each.environment["changed_files"]) or "none" for each in (a, b)],
            }
        ),
        *(Difference(what=item.kind, before=item.then, after=item.now) for item in library),
    ]
    equal = f"commit {commits[0]}, {len(a.files)} files of the recipe"
    return _part("code", equal, found, "".join(_unified(a.files, b.files, names)))


def _environment(a: ComparedTraining, b: ComparedTraining) -> DifferencePart:
    found = [item for item in _environments(a, b) if item.kind != CODE]
    return _part(
        "environment",
        f"lock files, {len(a.environment['packages'])} packages, hardware class, "
        f"{a.environment['world_size']} processes",
        [Difference(what=f"{item.kind} {item.name}", before=item.then, after=item.now) for item in found],
    )


def _environments(a: ComparedTraining, b: ComparedTraining) -> list[EnvironmentDifference]:
    return compare_environments(a.environment, b.environment)


def _parameters(a: ComparedTraining, b: ComparedTraining) -> DifferencePart:
    equal = f"{len(a.settings)} settings of features and train, seed {a.checkpoint.seed}"
    return _part("parameters", equal, _of_mappings(a.settings, b.settings))


def _metrics(a: ComparedTraining, b: ComparedTraining, names: tuple[str, str]) -> DifferencePart:
    evaluated = [name for name, each in zip(names, (a, b), strict=True) if each.report]
    # That only one was evaluated is no difference between the two trainings.
    reports = [each.report if len(evaluated) == 2 else None for each in (a, b)]
    measured = [_measured(each.checkpoint, report) for each, report in zip((a, b), reports, strict=True)]
    compared = ", ".join(name for name in measured[0] if name != "best epoch")
    said = f"; only {evaluated[0]} has an evaluation" if len(evaluated) == 1 else ""
    return _part("metrics", f"to the last bit: {compared}{said}", _of_mappings(*measured))


def _measured(checkpoint: CheckpointRef, report: ReportRef | None) -> dict[str, Any]:
    return {
        "best epoch": checkpoint.epoch,
        **{f"validation {name}": value for name, value in checkpoint.metrics.items()},
        **{f"test {name}": value for name, value in (report.metrics if report else {}).items()},
    }


def _part(name: PartName, equal: str, found: Sequence[Difference], patch: str = "") -> DifferencePart:
    is_equal = not (found or patch)
    said = equal if is_equal else ""
    return DifferencePart(name=name, is_equal=is_equal, said=said, differences=list(found), patch=patch)


def _of_mappings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    return [
        Difference(what=name, before=_text(a.get(name, ABSENT)), after=_text(b.get(name, ABSENT)))
        for name in [*a, *(name for name in b if name not in a)]
        if name not in a or name not in b or a[name] != b[name]
    ]


def _unequal(pairs: Mapping[str, Sequence[str]]) -> list[Difference]:
    return [Difference(what=what, before=a, after=b) for what, (a, b) in pairs.items() if a != b]


def _unpacked(archive: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        for name in opened.namelist():
            yield name, opened.read(name)


def _unified(a: Mapping[str, bytes], b: Mapping[str, bytes], names: tuple[str, str]) -> Iterator[str]:
    for path in sorted(a.keys() | b.keys()):
        if a.get(path) == b.get(path):
            continue
        contents = [files.get(path, b"") for files in (a, b)]
        if not any(contents):
            yield f"{path} is empty, and only in {names[path in b]}\n"
        elif any(b"\0" in content or content.count(b"\n") > _MOST_LINES for content in contents):
            yield f"{path} differs: {len(contents[0]):,} and {len(contents[1]):,} bytes\n"
        else:
            before, after = (content.decode(errors="replace").splitlines(keepends=True) for content in contents)
            first, second = (f"{path} ({name})" for name in names)
            for line in difflib.unified_diff(before, after, first, second):
                yield line if line.endswith("\n") else f"{line}\n"


def _rows(manifest: Manifest, period: str) -> str:
    return f"{sum(part.num_rows for part in manifest.partitions if part.period == period):,}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def _text(value: Any) -> str:
    return str(value) if value is not None else "none"
