"""``mlops checkpoints``: list, verify and restore the checkpoints of trainings; export weights."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from mlops.commands import Places, Subparsers
from mlops.contract.checkpoint_listing import is_copy, step_of
from mlops.contract.checkpoint_markers import DamagedCheckpointError, Saved
from mlops.contract.step import EXPERIMENTS, BadConfigError
from mlops.store import Store
from mlops.trainer.checkpoint.checkpoint_verification import find_damage
from mlops.trainer.checkpoint.listing import read_listing
from mlops.trainer.checkpoint.restoring import find_saved, restore

_RUN = "PIPELINE, or PIPELINE/KEY for one training (the key's first characters do), or its place in the store"
_RESTORE = (
    "Go back: the checkpoint of STEP becomes the newest of a training that has not ended, and a retry goes on from it. "
    "Later ones are set aside, from where another restore brings them back until the training has saved its next. "
    "Stop the training first. With --weights nothing is changed: the checkpoint's weights are written to a local file."
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("checkpoints", help=__doc__, description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    sub = commands.add_parser("list", help="the checkpoints of trainings, by their markers", description=_RUN)
    sub.set_defaults(run=_list)
    sub.add_argument("training", metavar="RUN", help=_RUN)
    sub.add_argument("--json", action="store_true", help="print JSON")
    text = "read every byte and check it; exit code 1 where a file is damaged"
    sub = commands.add_parser("verify", help=text, description=text)
    sub.set_defaults(run=_verify)
    sub.add_argument("training", metavar="RUN", help=_RUN)
    sub.add_argument("--step", type=int, metavar="STEP", help="only this one")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub = commands.add_parser("restore", help="go back to a checkpoint, or export its weights", description=_RESTORE)
    sub.set_defaults(run=_restore)
    sub.add_argument("training", metavar="RUN", help=_RUN)
    sub.add_argument("step", type=int, metavar="STEP")
    sub.add_argument("--weights", type=Path, metavar="FILE", help="write the weights there, as torch.load reads them")
    sub.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="of the weights (default: their own)")
    sub.add_argument("--compress", action="store_true", help="the weights, by zstd")


def _list(options: argparse.Namespace, places: Places, console: Console) -> int:
    store = places.store
    damaged: dict[str, str] = {}
    found = {place: _rows(store, place) for place in _trainings(store, options.training)}
    if options.json:
        _print_json(console, [{"place": place, **row} for place, rows in found.items() for row in rows])
    for place, rows in found.items():
        damaged |= {row["folder"]: row["problem"] for row in rows if row.get("problem")}
        if not options.json:
            console.print(_table(place, rows))
    for problem in damaged.values():
        Console(stderr=True).print(problem, style="red", markup=False, soft_wrap=True)
    return 1 if damaged else 0


def _rows(store: Store, place: str) -> list[dict[str, Any]]:
    listing = read_listing(store, place)
    newest = listing.complete[-1] if listing.complete else None
    rows: list[dict[str, Any]] = []
    for saved in listing.complete:
        facts = (
            ("newest", saved is newest),
            ("best", newest is not None and saved.step == newest.best_step),
            ("being removed", saved.folder in listing.retired),
        )
        state = ", ".join(word for word, holds in facts if holds)
        rows.append({"step": saved.step, "folder": saved.folder, "state": state or "complete", **_facts(saved)})
    for saved in listing.copies:
        state = "copy of the best weights" if newest and saved.step == newest.best_step else "copy of earlier weights"
        rows.append({"step": saved.step, "folder": saved.folder, "state": state, **_facts(saved)})
    for folder in listing.unfinished:
        state = "set aside" if folder in listing.set_aside else "unfinished"
        rows.append({"step": step_of(folder), "folder": folder, "state": state})
    for folder, problem in listing.damaged.items():
        rows.append({"step": step_of(folder), "folder": folder, "state": "damaged", "problem": problem})
    return sorted(rows, key=lambda row: (row["step"], not is_copy(row["folder"]), row["folder"]))


def _facts(saved: Saved) -> dict[str, Any]:
    history = saved.meta.get("history") or [{}]
    return {
        "epoch": saved.meta.get("epoch"),
        "saved_at": datetime.fromtimestamp(saved.saved_at, UTC).isoformat(timespec="seconds"),
        "num_bytes": saved.num_bytes,
        "world_size": saved.world_size,
        "validation_metric": history[-1].get("validation_metric"),
    }


def _table(place: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=place, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for header in ("step", "epoch"):
        table.add_column(header, no_wrap=True, justify="right")
    table.add_column("saved", no_wrap=True)
    for header in ("size", "world size", "metric"):
        table.add_column(header, no_wrap=True, justify="right")
    table.add_column("state")
    for row in reversed(rows):
        metric, size = row.get("validation_metric"), row.get("num_bytes")
        table.add_row(
            str(row["step"]),
            str(row.get("epoch") or ""),
            row.get("saved_at", "")[:16].replace("T", " "),
            "" if size is None else decimal(size),
            str(row.get("world_size", "")),
            "" if metric is None else f"{metric:.4f}",
            row["state"],
            style="dim" if row["state"] in ("unfinished", "set aside") else "",
        )
    return table


def _verify(options: argparse.Namespace, places: Places, console: Console) -> int:
    whole: list[Saved] = []
    problems: list[str] = []
    trainings, lacking = _trainings(places.store, options.training), list[BadConfigError]()
    for place in trainings:
        listing = read_listing(places.store, place)
        problems += [] if options.step is not None else listing.damaged.values()
        chosen = [*listing.complete, *listing.copies]
        if options.step is not None:
            chosen = [saved for saved in chosen if saved.step == options.step]
            try:
                chosen = chosen or [find_saved(places.store, place, options.step, listing)]
            except DamagedCheckpointError as error:
                problems.append(str(error))
            except BadConfigError as error:  # another training may have it
                lacking.append(error)
        for saved in chosen:
            damage = find_damage(places.store, saved)
            problems += damage
            whole += [] if damage else [saved]
    if len(lacking) == len(trainings):
        raise lacking[0]
    if options.json:
        _print_json(console, {"whole": [saved.folder for saved in whole], "damaged": problems})
        return 1 if problems else 0
    for problem in problems:
        console.print(problem, style="red", markup=False, soft_wrap=True)
    size = decimal(sum(saved.num_bytes for saved in whole))
    copies = sum(is_copy(saved.folder) for saved in whole)
    also = f" and {copies} {'copy' if copies == 1 else 'copies'} of best weights" if copies else ""
    console.print(f"{len(whole) - copies} checkpoints{also} are whole: {size}")
    return 1 if problems else 0


def _restore(options: argparse.Namespace, places: Places, console: Console) -> int:
    place = _one(places.store, options.training)
    if options.weights is not None:
        return _export(options, places.store, place, console)
    if options.dtype or options.compress:
        raise BadConfigError("--dtype and --compress are of --weights FILE, which is missing")
    saved, aside = restore(places.store, place, options.step)
    console.print(f"{place} goes on from step {saved.step}", markup=False, soft_wrap=True)
    if aside:
        steps = ", ".join(map(str, aside))
        console.print(f"set aside: {steps}; until the next save, restore brings each back", soft_wrap=True)
    return 0


def _export(options: argparse.Namespace, store: Store, place: str, console: Console) -> int:
    # They import torch, which list and verify need not wait for.
    from mlops.trainer.checkpoint.loading import load_whole
    from mlops.trainer.checkpoint.weights import export

    saved = find_saved(store, place, options.step)
    state = load_whole(store, saved, "model")
    if "model" not in state:
        raise BadConfigError(f"{saved.folder} holds no model")
    data = export(state["model"], dtype=options.dtype, compress=options.compress)
    try:
        options.weights.write_bytes(data)
    except OSError as error:
        raise BadConfigError(f"cannot write {options.weights}: {error.strerror}") from error
    console.print(f"{options.weights}: the weights of step {saved.step}, {decimal(len(data))}", soft_wrap=True)
    return 0


def _trainings(store: Store, training: str) -> list[str]:
    """Return places in the store for the name by which a person calls a training."""
    if training.startswith(("pipelines/", f"{EXPERIMENTS}/")):
        return [training.rstrip("/")]
    pipeline, _, key = training.partition("/")
    parent = f"pipelines/{pipeline}/train"
    keys = [name for name in store.folders(parent) if name.startswith(key)]
    if not keys:
        known = ", ".join(store.folders("pipelines")) or "none at all"
        raise BadConfigError(f"there is no training {training!r} in {store.uri}; it has the pipelines {known}")
    return [f"{parent}/{name}" for name in keys]


def _one(store: Store, training: str) -> str:
    found = _trainings(store, training)
    if len(found) > 1:
        keys = ", ".join(place.rpartition("/")[2] for place in found)
        raise BadConfigError(f"{training!r} names {len(found)} trainings; say PIPELINE/KEY with one of {keys}")
    return found[0]


def _print_json(console: Console, document: Any) -> None:
    console.out(json.dumps(document, indent=1, ensure_ascii=False), highlight=False)
