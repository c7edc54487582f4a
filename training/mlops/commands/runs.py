"""``mlops runs``: what was tried out by ``mlops run``, side by side; remove it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from mlops.commands import Places, Subparsers
from mlops.commands.runs_expired import Place, experiments, expired, judged, of_others, rests_on, under_way
from mlops.contract.refs import INPUT, CheckpointRef, ReportRef
from mlops.contract.settings import flat_settings, replaced_settings
from mlops.contract.step import EXPERIMENTS, BadConfigError, StepInput
from mlops.store import REF_FILE, Store, Stored
from mlops.store_errors import DamagedObjectError

_EXPERIMENT = "USER/PIPELINE or USER/PIPELINE.NAME, as `mlops run` says it"
_FORCE = "also what may be under way (steps that failed look the same), and what other experiments' results rest on"
_MOST_DAYS = 36_500


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A training of an experiment, its own or one of the pipeline's, and how it was judged."""

    experiment: str
    """``USER/PIPELINE`` or ``USER/PIPELINE.NAME``."""
    training: str
    """Place of the checkpoint."""
    until: str
    """End of the data interval, ISO 8601."""
    settings: Mapping[str, Any]
    """Of the training, by their names with dots; where there was a search, with what it found."""
    validation: Mapping[str, float]
    metrics: Mapping[str, float] | None
    """Of the evaluation; None where there is none."""
    passed: bool | None
    reason: str


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("runs", help=__doc__, description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    text = "the trainings of experiments: the settings in which they differ, metrics and verdict"
    sub = commands.add_parser("list", help=text, description=text)
    sub.set_defaults(run=_list)
    sub.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help=f"{_EXPERIMENT}; all of a user: USER")
    sub.add_argument("--json", action="store_true", help="print JSON")
    text = "remove what experiments made long ago, but for what newer runs, or judged models, rest on"
    sub = commands.add_parser("expire", help=text, description=text)
    sub.set_defaults(run=_expire)
    sub.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help=f"{_EXPERIMENT}; all of a user: USER")
    sub.add_argument("--days", type=_days, required=True, metavar="N", help="long ago: nothing written for N days")
    sub.add_argument("--delete", action="store_true", help="do it; without it is only said what would be removed")
    text = "remove all that an experiment made; its runs in MLflow stay"
    sub = commands.add_parser("remove", help=text, description=text)
    sub.set_defaults(run=_remove)
    sub.add_argument("experiment", metavar="EXPERIMENT", help=_EXPERIMENT)
    sub.add_argument("--delete", action="store_true", help="do it; without it is only said what would be removed")
    sub.add_argument("--force", action="store_true", help=_FORCE)


def _list(options: argparse.Namespace, places: Places, console: Console) -> int:
    found = {name: list(_tried(places.store, name)) for name in _experiments(places.store, options.experiment)}
    if options.json:
        console.out(json.dumps([asdict(each) for tried in found.values() for each in tried], indent=1), highlight=False)
        return 0
    if not found:
        console.print("nothing was tried out yet: mlops run PIPELINE")
    for name, tried in found.items():
        console.print(_table(name, tried))
    return 0


def _remove(options: argparse.Namespace, places: Places, console: Console) -> int:
    (name,) = _experiments(places.store, options.experiment, whole=True)
    objects = places.store.stored(f"{EXPERIMENTS}/{name}")
    size = decimal(sum(each.num_bytes for each in objects))
    if not options.delete:
        console.print(f"{EXPERIMENTS}/{name}: {len(objects)} objects, {size}; to remove them: --delete", soft_wrap=True)
        return 0
    ours = f"{EXPERIMENTS}/{name}/"
    # A training of another experiment, too, may have been made from this one's snapshot or features.
    try:
        if (report := next(judged(places.store, ours), None)) is not None:
            raise BadConfigError(
                f"{EXPERIMENTS}/{name} stays: {report.place} judged what was made from {rests_on(report, ours)}, on "
                "which a registered model may rest"
            )
        if not options.force and (other := next(of_others(places.store, name), None)) is not None:
            raise BadConfigError(
                f"{EXPERIMENTS}/{name} stays: {other.place} was made from {rests_on(other, ours)}. Remove that "
                "experiment first; where its results are not needed any more: --force"
            )
    except DamagedObjectError as error:
        if not options.force:
            raise BadConfigError(
                f"{EXPERIMENTS}/{name} stays: whether something else rests on it cannot be told. {error}; where it is "
                "not needed any more: --force"
            ) from error
        console.print(f"whether something else rests on it could not be told: {error}", soft_wrap=True, markup=False)
    if not options.force and (place := next(under_way(places.store, name, datetime.now(UTC)), None)) is not None:
        raise BadConfigError(
            f"{EXPERIMENTS}/{name} stays: {place.name} has no result, and was written at "
            f"{place.written:%Y-%m-%d %H:%M} UTC: it may run. Where it has failed, or was ended: --force"
        )
    _delete(places.store, objects)
    console.print(f"removed {len(objects)} objects, {size}; the data that nothing else names: mlops datasets gc")
    return 0


def _expire(options: argparse.Namespace, places: Places, console: Console) -> int:
    now = datetime.now(UTC)
    names = _experiments(places.store, options.experiment)
    table = Table("user", "old results", "removed" if options.delete else "to remove", "needed by newer or judged ones")
    removed = 0
    before = now - timedelta(days=options.days)
    for user, told in expired(places.store, names, before, now).items():
        old = [place for place in told.expired if not options.delete or _remove_old(places.store, place, before)]
        removed += len(old)
        gone = f"{len(old)}, {decimal(sum(each.num_bytes for each in old))}"
        table.add_row(user, str(len(told.expired) + len(told.needed)), gone, str(len(told.needed)))
        said = [
            f"{each.name} may run: what old results it rests on cannot be told, so they stay" for each in told.running
        ]
        for line in [*said, *(f"{each}: until then all of {user} stays" for each in told.damaged)]:
            console.print(line, soft_wrap=True)
    console.print(table)
    if removed:
        then = "the data that nothing else names: mlops datasets gc" if options.delete else "to remove them: --delete"
        console.print(then)
    return 0


def _remove_old(store: Store, place: Place, before: datetime) -> bool:
    """
    Remove a place, unless a run has taken what is there since it was listed: there are many, and each takes a while.

    :return: whether it is gone
    """
    objects = store.stored(place.name) if place.is_step else place.objects
    if any(each.modified >= before for each in objects):
        return False
    _delete(store, objects)
    return True


def _delete(store: Store, objects: Sequence[Stored]) -> None:
    # What is cut off in between is then no result any more, and not one without its files.
    refs = [each.key for each in objects if each.key.endswith(f"/{REF_FILE}")]
    for keys in (refs, [each.key for each in objects if each.key not in refs]):
        if keys:
            store.delete(keys)


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 1 <= days <= _MOST_DAYS:
        raise argparse.ArgumentTypeError(f"must be a number of 1 to {_MOST_DAYS}, got {text!r}")
    return days


def _experiments(store: Store, asked: str | None, *, whole: bool = False) -> Sequence[str]:
    """
    Return the names of experiments, ``USER/...``.

    :param asked: one, or a user; None: all
    :param whole: one must be named
    :raises BadConfigError: where there is no such one
    """
    known = list(experiments(store))
    if asked is None:
        return known
    asked = asked.removeprefix(f"{EXPERIMENTS}/")
    found = [name for name in known if name == asked or (not whole and name.startswith(f"{asked}/"))]
    if not found:
        raise BadConfigError(
            f"there is no experiment {asked!r} in {store.uri}; it holds {', '.join(known) or 'none at all'}"
        )
    return found


def _tried(store: Store, name: str) -> Iterator[Tried]:
    folder = f"{EXPERIMENTS}/{name}"
    checkpoints: dict[str, CheckpointRef] = {}
    reports: dict[str, ReportRef] = {}
    for step in ("train", "evaluate"):
        for key in store.folders(f"{folder}/{step}"):
            ref = store.committed(f"{folder}/{step}/{key}")  # None: it runs, or was stopped
            if isinstance(ref, ReportRef):
                # A night's training too, which was judged anew.
                reports[ref.parent.place], checkpoints[ref.parent.place] = ref, ref.parent
            elif isinstance(ref, CheckpointRef):
                checkpoints[ref.place] = ref
    for place, checkpoint in sorted(checkpoints.items()):
        if store.committed(place) is None:  # removed; what judged it was left
            continue
        told = StepInput.load(store.read(checkpoint.artifacts[INPUT]).decode())
        report = reports.get(place)
        yield Tried(
            experiment=name,
            training=place,
            until=told.run.interval_end,
            settings=flat_settings(replaced_settings(told.config, checkpoint.found)),
            validation=dict(checkpoint.metrics),
            metrics=None if report is None else dict(report.metrics),
            passed=None if report is None else report.passed,
            reason="" if report is None else report.reason,
        )


def _table(name: str, tried: Sequence[Tried]) -> Table:
    """A row for each training; of the settings those in which they differ."""
    names = list(dict.fromkeys(setting for each in tried for setting in each.settings))
    differing = [
        setting for setting in names if len({json.dumps(each.settings.get(setting)) for each in tried}) > 1
    ]  # fmt: skip
    metric = tried[0].settings["metric"] if tried else ""
    table = Table("data until")
    for heading in (*differing, f"validation {metric}", f"test {metric}", "verdict", "training"):
        table.add_column(Text(heading))
    table.title, table.title_justify = Text(f"{EXPERIMENTS}/{name}"), "left"
    for each in tried:
        verdict = {None: "not judged", True: "passed", False: "not passed"}[each.passed]
        table.add_row(
            each.until[:16],
            *(Text(str(each.settings.get(setting, "-"))) for setting in differing),
            _number(each.validation, metric),
            _number(each.metrics or {}, metric),
            verdict,
            Text(each.training.rpartition("/")[2]),
        )
    return table


def _number(metrics: Mapping[str, float], name: str) -> str:
    return f"{metrics[name]:.4f}" if name in metrics else "-"
