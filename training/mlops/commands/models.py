"""``mlops models``: the stages of model versions and their audit trail; promote, roll back, archive, retire, adopt."""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mlops.commands import Places, Subparsers
from mlops.commands.signing import add_key, person, sign_entry, signing_key, tell_signed
from mlops.contract.printable import printable
from mlops.contract.stages import ALIASES, CHAMPION, STAGE_TAG, reason_of
from mlops.contract.step import BadConfigError
from mlops.registry.audit import AuditError, AuditTrail, Entry
from mlops.registry.promotion import Promotion
from mlops.registry.transitions import Author, ours
from mlops.serving.verified_loading import ForgedModelError, fetch_verified, files_of
from mlops.tracking.connection import connect
from mlops.tracking.model_registry import ModelRegistry, model_names

_ACTIONS = {
    "promote": "put a version into production, whatever its stage and whatever the champion",
    "archive": "take a version back that is in staging or canary",
    "rollback": "put the former champion into production again",
    "retire": "take the champion out of production and put none in its place: the next model is judged as the first",
    "adopt": "record aliases that were moved by other means, as they are",
}


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("models", help=__doc__, description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, text in (
        ("list", _list, "all models: what is in which stage, and since when"),
        ("show", _show, "the versions of a model"),
        ("verify", _verify, "fetch a version and compare its files with those that were registered; nothing is loaded"),
        ("history", _history, "a model's audit trail; exit code 1 where it was tampered with"),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print JSON")
        if name == "verify":
            sub.add_argument("named", metavar="NAME/VERSION", help="VERSION is a number or an alias")
            sub.add_argument(
                "--into", type=Path, metavar="FOLDER", help="keep the files there, for `mlflow models serve -m FOLDER`"
            )
            sub.add_argument("--trusted", action="append", default=[], help=argparse.SUPPRESS)
        elif name != "list":
            sub.add_argument("model", metavar="NAME")
    for name, text in _ACTIONS.items():
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=_move, action=name)
        sub.add_argument("model", metavar="NAME")
        if name in ("promote", "archive"):
            sub.add_argument("version", metavar="VERSION")
        if name == "rollback":
            sub.add_argument(
                "--champion",
                metavar="VERSION",
                help="the one to take back: nothing happens where another is in production by now, for somebody else "
                "was quicker (default: the one that is in production now)",
            )
        sub.add_argument("--why", required=True, type=_reason, metavar="TEXT", help="for the audit trail")
        add_key(sub)


def _reason(text: str) -> str:
    """
    Return the reason of an action as one printable line.

    :raises argparse.ArgumentTypeError: if it is empty
    """
    try:
        return reason_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _list(options: argparse.Namespace, places: Places, console: Console) -> int:
    client = connect(places.tracking_uri)
    damaged = False
    rows: list[dict[str, Any]] = []
    table = _table("model", *ALIASES.values(), "last transition")
    for name in model_names(client):
        aliases = ModelRegistry(client=client, name=name).aliases()
        row: dict[str, Any] = {"model": name, "aliases": aliases, "last": None, "problem": None}
        said = "none"
        try:
            if (last := AuditTrail(places.store, name).last()) is not None:
                row["last"] = _wire(last)
                preposition = "to" if last.action == "rollback" else "of"
                said = f"{_minute(last.at)} {last.action} {preposition} {last.version} by {last.who}"
                if ours(aliases) != last.stages.aliases:
                    row["problem"] = f"by the audit trail the aliases are {_stages(last)}"
                    said += f"; {row['problem']}"
        except AuditError as error:  # of one model: the others are to be seen all the same
            damaged, row["problem"], said = True, str(error), str(error)
        rows.append(row)
        table.add_row(name, *(aliases.get(alias, "") for alias in ALIASES.values()), escape(printable(said)))
    if options.json:
        _print_json(console, rows)
    else:
        console.print(table)
    return 1 if damaged else 0


def _show(options: argparse.Namespace, places: Places, console: Console) -> int:
    registry = _registry(options, places)
    aliases = registry.aliases()
    rows: list[dict[str, Any]] = [
        {
            "version": str(version.version),
            "stage": version.tags.get(STAGE_TAG, ""),
            "aliases": [alias for alias, named in aliases.items() if named == str(version.version)],
            "created": datetime.fromtimestamp(version.creation_timestamp / 1000, UTC).isoformat(timespec="seconds"),
            "reason": version.description or "",
        }
        for version in registry.versions()
    ]
    if not rows:
        raise BadConfigError(f"there is no model {registry.name!r} in MLflow at {places.tracking_uri}")
    if options.json:
        _print_json(console, rows)
        return 0
    table = _table("version", "stage", "aliases", "registered", "why")
    for row in rows:
        cells = row["version"], row["stage"], ", ".join(row["aliases"]), _minute(row["created"]), row["reason"]
        table.add_row(*(escape(printable(cell)) for cell in cells))
    console.print(table)
    return 0


def _history(options: argparse.Namespace, places: Places, console: Console) -> int:
    entries: list[Entry] = []
    problem: AuditError | None = None
    trail = AuditTrail(places.store, options.model)
    try:
        entries.extend(trail.newest_first())
    except AuditError as error:
        problem = error
    if not entries and problem is None:
        if not ours(_registry(options, places).aliases()):
            raise BadConfigError(f"model {options.model!r} has no audit trail, and no version in any stage")
        problem = AuditError(
            f"versions of {options.model!r} are in stages, and the audit trail in {places.store.uri} has no entry: "
            "restore it from a backup, or record them: mlops models adopt"
        )
    if options.json:
        _print_json(console, {"entries": [_wire(entry) for entry in entries], "problem": problem and str(problem)})
    else:
        table = _table("entry", "when", "action", "version", "from", "to", "champion before", "who", "approver", "why")
        for entry in entries:
            action = entry.action if trail.is_applied(entry.number) else f"{entry.action} (not carried out)"
            cells = (
                *(str(entry.number), _minute(entry.at), action, entry.version, entry.from_stage, entry.to_stage),
                *(entry.former_champion, entry.who, entry.approver, entry.why),
            )
            table.add_row(*(escape(printable(cell or "")) for cell in cells))
        console.print(table)
        if problem is None:
            console.print(f"{len(entries)} entries, none changed or missing")
    if problem is not None:
        Console(stderr=True).print(printable(str(problem)), style="red", markup=False, soft_wrap=True)
    return 0 if problem is None else 1


def _verify(options: argparse.Namespace, places: Places, console: Console) -> int:
    name, _, version = options.named.rpartition("/")
    if not name or not version:
        raise BadConfigError(f"{options.named!r} names no version; say NAME/VERSION, for example ranker/champion")
    if not options.trusted:
        raise BadConfigError("no key is trusted: name a file of public keys in [mlops] release_public_keys")
    with tempfile.TemporaryDirectory(prefix="model-") as scratch:
        folder = options.into or Path(scratch)
        try:
            number = fetch_verified(
                places.tracking_uri, name, version, folder, trusted=options.trusted, store=places.store
            )
        except ForgedModelError as error:
            if options.json:
                _print_json(console, {"whole": False, "why": str(error)})
            Console(stderr=True).print(printable(str(error)), style="red", markup=False, soft_wrap=True)
            return 1
        files = files_of(folder)
    if options.json:
        _print_json(console, {"whole": True, "version": number, "files": dict(files)})
    else:
        kept = f"; they are in {options.into}" if options.into else ""
        console.print(f"{name}/{number}: its {len(files)} files are those that were registered{kept}", soft_wrap=True)
    return 0


def _move(options: argparse.Namespace, places: Places, console: Console) -> int:
    key = signing_key(options.key, options.trusted)  # before anything is done that could not be signed
    # Where the deployment trusts nobody, its tasks sign nothing.
    promotion = Promotion.of(_registry(options, places), places.store, options.trusted)
    by = Author(who=person(), why=options.why)
    before = promotion.trail.last()
    match options.action:
        case "promote":
            entry = promotion.promote_anyhow(options.version, by)
        case "archive":
            entry = promotion.archive(options.version, by)
        case "rollback":
            # Of two at once the second must not take back what the first has put there.
            champion = options.champion or promotion.registry.version_of_alias(CHAMPION)
            entry = promotion.roll_back(by, taken_back=champion)
        case "retire":
            entry = promotion.retire(by)
        case _:
            entry = promotion.adopt(by)
    # Not where somebody else was quicker: what a person has not said they do not answer for.
    if (entry.who, entry.why, entry.action) == (by.who, by.why, options.action):
        sign_entry(places.store, entry, key, f"{by.who}: {by.why}", options.trusted)
        tell_signed(options.signed, entry)
    left = sorted(set(before.stages.live if before else ()) - set(entry.stages.live), key=int)
    archived = f"; archived: version {', '.join(left)}" if left else ""
    note = "nothing to do; " if before and entry.number == before.number else ""
    console.print(
        f"{options.model}: {note}{_stages(entry)}{archived}; entry {entry.number} of the audit trail", soft_wrap=True
    )
    return 0


def _stages(entry: Entry) -> str:
    return ", ".join(f"{alias} {version}" for alias, version in entry.stages.aliases.items()) or "no version live"


def _registry(options: argparse.Namespace, places: Places) -> ModelRegistry:
    return ModelRegistry(client=connect(places.tracking_uri), name=options.model)


def _wire(entry: Entry) -> dict[str, Any]:
    return asdict(entry)


def _minute(at: str) -> str:
    return at[:16].replace("T", " ")


def _table(*headers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def _print_json(console: Console, document: Any) -> None:
    # All else as escapes: a terminal acts on some characters, and half ones cannot be printed.
    console.out(json.dumps(document, indent=1), highlight=False)
