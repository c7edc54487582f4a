"""``mlops store``: read everything that committed refs name, say what is damaged and what that affects, and heal it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.prompt import Confirm

from mlops.commands import MISTAKEN, Places, Subparsers
from mlops.contract.printable import printable
from mlops.contract.step import BadConfigError

if TYPE_CHECKING:
    from mlops.integrity.effects import Effect
    from mlops.integrity.healing import Healed
    from mlops.integrity.inventory import Inventory
    from mlops.integrity.reading import Findings
    from mlops.integrity.remedies import Remedy

_SHOWN: Final = 5
_ABOUT: Final = (
    "Reads snapshots, features, checkpoints, weights, reports and all else that committed refs name, decisions and "
    "audit trails, each object once, and checks the digests. Exit code 0: all is whole, 1: something is damaged or "
    "missing, 2: it is not known."
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("store", help=__doc__, description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    sub = commands.add_parser("verify", help="read everything that committed refs name", description=_ABOUT)
    sub.set_defaults(run=_verify)
    sub.add_argument("--pipeline", metavar="NAME", help="only what this pipeline has made, and its models' trails")
    sub.add_argument("--heal", action="store_true", help="make again what can be made again, to the same bits")
    sub.add_argument("--yes", action="store_true", help="heal without asking")
    sub.add_argument("--json", action="store_true", help="print JSON")


def _verify(options: argparse.Namespace, places: Places, console: Console) -> int:
    # They import torch and mlflow, which --help need not wait for.
    from mlops.integrity.effects import effects_of
    from mlops.integrity.remedies import find_remedies

    if options.yes and not options.heal:
        raise BadConfigError("--yes is of --heal, which is missing")
    inventory, findings = _read(options, places)
    effects, unknown = effects_of(places.store, inventory, findings.damage, places.tracking_uri)
    if not options.json:
        _show(console, inventory, findings, effects, unknown)
    remedies: Sequence[Remedy] = ()
    healed: Sequence[Healed] = ()
    if options.heal and findings.damage:
        remedies = find_remedies(places.store, inventory, findings.damage, places.tracking_uri)
        if not options.json:
            _show_remedies(console, remedies)
        healed = _heal(options, places, inventory, remedies, console)
    if options.json:
        _print_json(console, inventory, findings, effects, unknown, remedies, healed)
    whole = {each.damage for each in healed if each.healed}
    if any(damage not in whole for damage in findings.damage):
        return 1
    if hidden := [damage.key for damage in whole if damage.hides]:
        Console(stderr=True).print(
            f"what {hidden[0]} names was not looked at, for it had to be made again first: verify once more",
            markup=False, soft_wrap=True,
        )  # fmt: skip
    return MISTAKEN if findings.unreadable or hidden else 0


def _read(options: argparse.Namespace, places: Places) -> tuple[Inventory, Findings]:
    from mlops.integrity.inventory import take_inventory
    from mlops.integrity.reading import read_all

    shown = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=shown,
        transient=True,
        # On stderr, and only for people: what is piped stays clean.
        disable=not shown.is_terminal,
    ) as bar:
        task = bar.add_task("reading refs", total=None)
        inventory = take_inventory(places.store, options.pipeline)
        bar.update(task, description="verifying", total=inventory.num_bytes)
        models = inventory.models if options.pipeline else places.store.folders("models")
        return inventory, read_all(places.store, inventory, models, lambda count: bar.advance(task, count))


def _show(
    console: Console, inventory: Inventory, findings: Findings, effects: Sequence[Effect], unknown: str | None
) -> None:
    for effect in effects:
        console.print(printable(str(effect.damage)), style="red", markup=False, soft_wrap=True)
        what: dict[str, Sequence[str]] = {
            "needed by": effect.refs,
            "runs": effect.runs,
            "model versions": [str(version) for version in effect.versions],
            "audit trail of": [effect.damage.model] if effect.damage.model else [],
        }
        for label, names in what.items():
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                console.print(printable(f"  {label} {', '.join(names[:_SHOWN])}{more}"), markup=False, soft_wrap=True)
    for sentence in findings.unreadable:
        console.print(printable(f"not known: {sentence}"), style="yellow", markup=False, soft_wrap=True)
    if unknown is not None:
        console.print(f"the stages of model versions are unknown: {unknown}", markup=False, soft_wrap=True)
    size = decimal(inventory.num_bytes)
    looked = f"{len(inventory.refs)} refs and {findings.num_looked_at - len(inventory.refs)} other objects, {size}"
    if findings.damage:
        console.print(f"{len(findings.damage)} damaged or missing, of {looked}", soft_wrap=True)
    elif not findings.unreadable:
        console.print(f"all is whole: {looked}", soft_wrap=True)


def _show_remedies(console: Console, remedies: Sequence[Remedy]) -> None:
    from mlops.integrity.remedies import Way

    console.print()
    for remedy in remedies:
        verdict = "cannot be made again" if remedy.way is Way.NONE else "to do"
        console.print(f"{remedy.damage.key}\n  {verdict}: {remedy.sentence}", markup=False, soft_wrap=True)


def _heal(
    options: argparse.Namespace, places: Places, inventory: Inventory, remedies: Sequence[Remedy], console: Console
) -> list[Healed]:
    from mlops.integrity.healing import Healer
    from mlops.integrity.remedies import Way

    possible = [remedy for remedy in remedies if remedy.way is not Way.NONE]
    asking = Console(stderr=True)
    if not possible:
        return []
    if not options.yes:
        if not sys.stdin.isatty():
            raise BadConfigError("--heal asks before it writes, and there is nobody to ask: say --yes")
        if not Confirm.ask(f"Heal {len(possible)} objects in {places.store.uri}?", console=asking, default=False):
            return []
    status = asking.status("healing") if asking.is_terminal else None
    with status or nullcontext():
        healer = Healer(
            store=places.store,
            inventory=inventory,
            home=places.home,
            tracking_uri=places.tracking_uri,
            pythons=places.pythons,
            on_line=lambda line: status.update(line[:100]) if status else None,
        )
        done = list(healer.heal(possible))
    for each in done if not options.json else ():
        verdict, style = ("healed", "green") if each.healed else ("not healed", "red")
        console.print(f"{verdict}: {each.damage.key} ({each.sentence})", style=style, markup=False, soft_wrap=True)
    return done


def _print_json(
    console: Console,
    inventory: Inventory,
    findings: Findings,
    effects: Sequence[Effect],
    unknown: str | None,
    remedies: Sequence[Remedy],
    healed: Sequence[Healed],
) -> None:
    ways = {remedy.damage: {"way": remedy.way.name.lower(), "sentence": remedy.sentence} for remedy in remedies}
    ends = {each.damage: {"healed": each.healed, "sentence": each.sentence} for each in healed}
    rows: list[dict[str, Any]] = [
        {
            **asdict(effect.damage),
            "refs": list(effect.refs),
            "runs": list(effect.runs),
            "versions": [asdict(version) for version in effect.versions],
            "remedy": ways.get(effect.damage),
            "outcome": ends.get(effect.damage),
        }
        for effect in effects
    ]
    document = {
        "refs": len(inventory.refs),
        "looked_at": findings.num_looked_at,
        "num_bytes": inventory.num_bytes,
        "damage": rows,
        "unreadable": findings.unreadable,
        "stages_unknown": unknown,
    }
    console.out(json.dumps(document, indent=1, ensure_ascii=False), highlight=False)
