"""``mlops reproduce``: make a model version again from its snapshot, code and seed, and compare the bits."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from mlops.commands import Places, Subparsers
from mlops.commands.reproduce_text import Transcript
from mlops.contract.checkpoint_listing import start_of
from mlops.contract.refs import CheckpointRef, DatasetRef, FeaturesRef, StudyRef
from mlops.contract.settings import settings_text
from mlops.contract.step import BadConfigError
from mlops.store_errors import DamagedObjectError

if TYPE_CHECKING:
    from mlops.registry.versions import RegisteredVersion
    from mlops.reproduction.original import Original
    from mlops.reproduction.rerun import Reruns

IDENTICAL_TAG: Final = "mlops.reproduction.identical"
STEPS: Final = ("features", "train")
_ABOUT: Final = (
    "Checks the snapshot's digests, checks out the code that was run, runs features and train again in processes of "
    "their own, with the same seed and world size, and compares features, epochs, weights and the evaluation's metric. "
    "Nothing is registered; the training is tracked in the experiment PIPELINE_reproductions. Exit code 0: IDENTICAL, "
    "1: something differs, 2: it could not be done."
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("reproduce", help=__doc__, description=_ABOUT)
    parser.set_defaults(run=_reproduce)
    parser.add_argument("version", metavar="MODEL/VERSION", help="a registered version, by number or alias")
    parser.add_argument(
        "--steps", choices=STEPS, action="append", help="only this one; may be given several times (default: both)"
    )
    parser.add_argument(
        "--world-size", type=_positive, metavar="N", help="what if: train in N processes instead of as many as then"
    )
    parser.add_argument(
        "--allow-different-environment",
        action="store_true",
        help="go on where installed packages are not those of then",
    )


@dataclass(kw_only=True)
class _Findings:
    differences: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def add(self, differences: Collection[str], reasons: Collection[str] = ()) -> None:
        self.differences += differences
        if differences:
            self.reasons += [reason for reason in reasons if reason not in self.reasons]


def _reproduce(options: argparse.Namespace, places: Places, console: Console) -> int:
    # They import mlflow and torch, which --help need not wait for.
    from mlops.registry.versions import read_version
    from mlops.reproduction.original import Original
    from mlops.reproduction.rerun import reruns
    from mlops.reproduction.workplace import parallelise

    version = read_version(places.tracking_uri, options.version)
    original = Original.read(places.store, version.report.ancestor(CheckpointRef))
    named = f"{version.name}/{version.version}"
    say = Transcript(console)
    say.tell("version", f"{named}, trained from {original.checkpoint.place}")
    if isinstance(study := original.checkpoint.parent, StudyRef):
        say.tell("study", f"trial {study.best_trial} of {study.name} found {settings_text(study.parameters)}")
    steps = options.steps or STEPS
    if "train" in steps:
        _check_gpus(options.world_size or original.checkpoint.world_size)
    differences = _check_environment(original, places.home, say, allow=options.allow_different_environment)
    _check_snapshot(places, original, say)
    with tempfile.TemporaryDirectory(prefix="mlops-reproduce-") as name:
        scratch = Path(name)
        workplace = parallelise(original, places.home, scratch)
        say.tell("code", workplace.said)
        pipeline = original.train_input.run.pipeline
        with reruns(places.store, places.tracking_uri, workplace, scratch, of=named, pipeline=pipeline) as again:
            findings = _Findings()
            if "features" in steps:
                findings.add(_features(again, original, say), differences)
            if "train" in steps:
                now, found, reasons = _train(again, original, options.world_size, say)
                findings.add(found, reasons)
                findings.add(_metric(again, version, now, say), differences)
    return _conclude(original, findings, steps, console)


def _check_gpus(world_size: int) -> None:
    import torch

    from mlops.contract.environments import why_not_here

    if (reason := why_not_here(world_size, torch.cuda.device_count())) is not None:
        raise BadConfigError(reason)


def _check_environment(original: Original, home: Path, say: Transcript, *, allow: bool) -> list[str]:
    """Compare the environments; return the differences, as reasons for other bits."""
    import torch

    from mlops.contract.environments import compare_environments, that_count, that_must_agree
    from mlops.trainer.environment import environment

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # The code and the threads are those of then.
    here = {name: value for name, value in environment(home, device).items() if name not in ("library", "num_threads")}
    differences = that_count(compare_environments(original.environment, here))
    if not differences:
        say.tell("environment", "the same packages, lock files and hardware class")
    for difference in differences:
        say.tell("environment", str(difference), "yellow")
    for said in original.other_environments[:5]:
        say.tell("environment", f"a part of it may have been trained in another one, {said}", "yellow")
    if (reason := _not_deterministic(original)) is not None:
        say.tell("determinism", reason, "yellow")
    if that_must_agree(differences) and not allow:
        raise BadConfigError(
            "the packages that are installed here are not those that the model was made with: "
            + "; ".join(map(str, that_must_agree(differences)[:5]))
            + f". Install training/requirements.txt of commit {original.commit[:12]} and run this again in that "
            "environment, or say --allow-different-environment to see whether it matters"
        )
    return [str(difference) for difference in differences]


def _check_snapshot(places: Places, original: Original, say: Transcript) -> None:
    """
    Check every object of the snapshot.

    :raises DamagedObjectError: naming every object of the snapshot that is not what was written
    """
    from mlops.data.snapshots.snapshot import Snapshot
    from mlops.data.snapshots.snapshot_verification import find_problems

    dataset = original.checkpoint.ancestor(DatasetRef)
    manifest = Snapshot.open(places.store, dataset).manifest
    blobs = list({blob.artifact.key: blob.artifact for blob in manifest.blobs}.values())
    with say.working("reading the snapshot"):
        problems = find_problems(places.store, blobs, lambda done, total: None)
    name = f"{dataset.name}@{dataset.version[:12]}"
    if problems:
        raise DamagedObjectError(f"the snapshot {name} cannot be used: {'; '.join(problems.values())}")
    say.tell("snapshot", f"{name}, {manifest.num_rows:,} rows of {len(manifest.partitions)} days, every digest holds")


def _features(again: Reruns, original: Original, say: Transcript) -> list[str]:
    from mlops.reproduction.features import compare_features

    document, then = original.features_input, original.features
    say.tell("code", again.workplace.use_recipe(again.store, then, document.config["feature_set"]))
    with say.working("features") as on_line:
        # What serves the model in production is left alone.
        now = again.run(document, then.parent, config={"online": None}, world_size=0, num_threads=None, on_line=on_line)
    assert isinstance(now, FeaturesRef)
    found = compare_features(again.store, then, now, again.scratch)
    say.compared("features", found, f"state and shards of {sum(now.num_samples.values()):,} samples are identical")
    return found


def _train(
    again: Reruns, original: Original, what_if: int | None, say: Transcript
) -> tuple[CheckpointRef, Collection[str], Collection[str]]:
    """Train again; return the model made again, the parts that differ, and likely reasons."""
    from mlops.reproduction.weights import compare_training
    from mlops.tracking.connection import connect
    from mlops.tracking.run import reopen_run

    document, then = original.train_input, original.checkpoint
    say.tell("code", again.workplace.use_recipe(again.store, then, original.trained_recipe))
    world_size = what_if or then.world_size
    with say.working("train") as on_line:
        now = again.run(
            document,
            original.checkpoint.parent,
            config={"nodes": 1, "processes": world_size, **_beginning(original)},
            world_size=world_size,
            num_threads=original.environment["num_threads"],
            on_line=on_line,
        )
    assert isinstance(now, CheckpointRef)
    found = compare_training(again.store, then, now)
    epochs = {0: "taken as they are", 1: "the first epoch is the best"}.get(
        now.epoch, f"{now.epoch} epochs to the best"
    )
    say.compared("train", found.values(), f"steps, epochs and weights are identical, {epochs}, {world_size} processes")
    run = reopen_run(connect(again.tracking_uri), now.tracking_run)
    run.log_values({}, {IDENTICAL_TAG: str(not found)})
    return now, found.values(), _reasons(original, now, again, found) if found else ()


def _beginning(original: Original) -> dict[str, Any]:
    """Return the setting by which a training begins with what was kept of its beginning; empty where it is none."""
    if "start" in original.checkpoint.artifacts:
        step = original.train_input.config["resume_from"]["step"]
        return {"resume_from": {"training": start_of(original.checkpoint.place), "step": step}}
    if (kept := original.checkpoint.artifacts.get("initial_weights")) is None:
        return {}
    return {"initialise": {**original.train_input.config["initialise"], "found": {**asdict(kept), "version": ""}}}


def _reasons(original: Original, now: CheckpointRef, again: Reruns, found: Collection[str]) -> list[str]:
    from mlops.contract.environments import compare_environments, that_count
    from mlops.reproduction.original import read_environment

    if set(found) == {"weights"} and "trail" in original.checkpoint.artifacts:
        return ["every step and epoch is the same: the stored weights are not those that this training ends with"]
    differences = compare_environments(original.environment, read_environment(again.store, now))
    reasons = [str(difference) for difference in that_count(differences)]
    if original.changed_files and not original.patch:
        reasons.insert(0, f"code that was not committed and not kept: {', '.join(original.changed_files[:5])}")
    reasons += [f"it changed while the model was trained: {said}" for said in original.other_environments[:5]]
    if (program := original.train_input.config["program"]) is not None:
        reasons.append(
            f"the loop is the recipe's own, {program}: it ends at the same bits only where it seeds all that it draws, "
            "and was not interrupted or goes on exactly"
        )
    elif (reason := _not_deterministic(original)) is not None:
        reasons.append(reason)
    return reasons


def _not_deterministic(original: Original) -> str | None:
    """Return why the bits may differ each time; None if they may not."""
    setting = original.train_input.config["deterministic"]
    if setting is False:
        return "train.deterministic was false: kernels may give other bits each time"
    operations = original.environment.get("nondeterministic")
    if setting == "warn" and operations:
        return f"train.deterministic was warn: {', '.join(operations)} may give other bits each time"
    return None


def _metric(again: Reruns, version: RegisteredVersion, now: CheckpointRef, say: Transcript) -> list[str]:
    from mlops.reproduction.measuring import compare_metric

    difference, compared = compare_metric(again.store, version.report, now, again.workplace.home, again.scratch)
    found = [difference] if difference else []
    say.compared("metrics", found, compared)
    return found


def _conclude(original: Original, findings: _Findings, steps: Sequence[str], console: Console) -> int:
    if not findings.differences:
        sha256 = original.checkpoint.artifacts["weights"].sha256 if "train" in steps else original.features.version
        what = "weights" if "train" in steps else "features"
        console.print(f"[bold green]IDENTICAL[/bold green]  {what} {sha256}", soft_wrap=True)
        return 0
    console.print(f"[bold red]DIFFERENT[/bold red]  {findings.differences[0]}", soft_wrap=True)
    for reason in findings.reasons:
        console.print(f"likely reason: {reason}", markup=False, soft_wrap=True)
    if not findings.reasons:
        console.print("no likely reason: nothing that is recorded of code, packages and hardware differs")
    return 1


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text!r}")
    return value
