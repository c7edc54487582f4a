"""``mlops audit``: whether the audit trails of the models are what was written, and who answers for each entry."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mlops.commands import Places, Subparsers
from mlops.commands.signing import add_key, person, sign_entry, signing_key, tell_signed
from mlops.contract.printable import printable
from mlops.contract.step import BadConfigError
from mlops.registry.audit import AuditTrail
from mlops.registry.trail_verification import Anchor, Finding, TrailCheck
from mlops.registry.transitions import ours
from mlops.signing.keys import UnusableKeyError, key_id
from mlops.store import Store
from mlops.store_errors import StoreAwayError, StoreRefusedError
from mlops.tracking.connection import TrackingError, connect
from mlops.tracking.model_registry import ModelRegistry, model_names


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("audit", help=__doc__, description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    verify = commands.add_parser(
        "verify",
        help="name what was changed, cut off, removed or never signed; exit code 1 where there is any",
        description="Compare every entry with its signature, with the entry after it, with the newest one that Airflow "
        "knows, and the stages with the aliases in MLflow. Airflow's REST API is asked: --airflow-url URL, --user NAME "
        "(password from MLOPS_AIRFLOW_PASSWORD); --without-airflow leaves that out: then nobody knows of entries that "
        "were cut off at the end with all their traces.",
    )
    verify.set_defaults(run=_verify)
    verify.add_argument("models", nargs="*", metavar="NAME", help="default: all")
    verify.add_argument("--json", action="store_true", help="print JSON")
    verify.add_argument("--trusted", action="append", default=[], help=argparse.SUPPRESS)
    verify.add_argument("--anchors", type=json.loads, help=argparse.SUPPRESS)
    sign = commands.add_parser(
        "sign",
        help="answer for entries that nobody has signed",
        description="Answer for entries that nobody has signed, because the task that made them was lost, or whose key "
        "is trusted no more. Look at them first: mlops models history NAME",
    )
    sign.set_defaults(run=_sign)
    sign.add_argument("model", metavar="NAME")
    sign.add_argument("numbers", nargs="+", type=int, metavar="NUMBER")
    sign.add_argument("--why", required=True, metavar="TEXT")
    add_key(sign)


def _verify(options: argparse.Namespace, places: Places, console: Console) -> int:
    given = options.anchors or {}
    flaws = {model: known["flaw"] for model, known in given.items() if "flaw" in known}
    anchors = {
        model: Anchor(number=known["number"], sha256=known["sha256"])
        for model, known in given.items()
        if "number" in known
    }
    aliases = _aliases(places)
    in_stages = [name for name, named in (aliases or {}).items() if named]
    audited = {*_with_trail(places.store), *given, *in_stages}
    names = options.models or sorted(audited)
    # Of a mistyped name nothing would be found to be wrong.
    known = {*audited, *(aliases or {})}
    if unknown := [name for name in names if name not in known]:
        raise BadConfigError(
            f"there is no model {unknown[0]!r}: it has no audit trail, and neither MLflow nor Airflow knows it; there "
            f"are {', '.join(sorted(known)) or 'none at all'}"
        )
    if not options.trusted:
        raise BadConfigError(
            "no key is trusted: name a file of public keys in [mlops] release_public_keys, or a key of the "
            "deployment in release_key"
        )
    rows: list[dict[str, Any]] = []
    for name in names:
        check = TrailCheck(store=places.store, model=name, trusted=options.trusted, anchor=anchors.get(name))
        try:
            count, findings = check.findings()
            moved = [] if aliases is None else _moved(places.store, name, aliases.get(name))
        except (StoreAwayError, StoreRefusedError, UnusableKeyError):  # of all models
            raise
        # Who may write one model's trail must not end the check of the others, whatever they write there.
        except Exception as error:
            text = f"its trail cannot be checked: {type(error).__name__}: {error}"
            count, findings, moved = 0, [Finding(number=0, kind="changed", text=text)], []
        if name in flaws:
            findings.insert(0, Finding(number=0, kind="changed", text=flaws[name]))
        anchored = _number(anchors.get(name))
        rows.append({"model": name, "entries": count, "anchored": anchored, "findings": [*findings, *moved]})
    wrong = any(row["findings"] for row in rows)
    if options.json:
        wire = [{**row, "findings": [_wire(found) for found in row["findings"]]} for row in rows]
        console.print_json(json.dumps(wire), ensure_ascii=True)  # a terminal acts on some characters
        return int(wrong)
    table = Table("model", "entries", "known to Airflow", "entry", "what", box=None, header_style="bold")
    table.add_column(overflow="fold")  # digests and keys are not cut
    for row in rows:
        head = row["model"], str(row["entries"]), "" if row["anchored"] is None else f"up to {row['anchored']}"
        if not row["findings"]:
            table.add_row(*map(_shown, head), "", "none changed, missing or unsigned", "")
        for found in row["findings"]:
            table.add_row(*map(_shown, head), str(found.number or ""), found.kind, _shown(found.text))
            head = "", "", ""
    console.print(table if rows else "no model has an audit trail")
    if options.anchors is None:
        console.print("Airflow was not asked: an end that was cut off with all its traces is not seen")
    return int(wrong)


def _sign(options: argparse.Namespace, places: Places, console: Console) -> int:
    key, trail = signing_key(options.key, options.trusted), AuditTrail(places.store, options.model)
    who = person()
    for number in sorted(options.numbers):
        entry = trail.read(number)
        done = sign_entry(places.store, entry, key, f"{who}: {options.why}", options.trusted)
        said = f"signed with key {key_id(key.public)}" if done else "has been signed before"
        what = f"{options.model}: entry {number} ({entry.action} of version {entry.version} by {entry.who}) {said}"
        console.print(printable(what), markup=False, soft_wrap=True)
    tell_signed(options.signed, entry)
    return 0


def _number(anchor: Anchor | None) -> int | None:
    return None if anchor is None else anchor.number


def _wire(found: Finding) -> dict[str, Any]:
    return {"entry": found.number, "kind": found.kind, "what": found.text}


def _with_trail(store: Store) -> set[str]:
    parts = [key.split("/") for key in store.list("models")]  # stray objects lie beside them
    return {part[1] for part in parts if len(part) > 3 and part[2] in ("audit", "applied", "seals")}


def _aliases(places: Places) -> Mapping[str, Mapping[str, str]] | None:
    """Return those of our aliases that each model has in MLflow; None if MLflow is away."""
    try:
        client = connect(places.tracking_uri)
        return {name: ours(ModelRegistry(client=client, name=name).aliases()) for name in model_names(client)}
    except TrackingError as error:
        Console(stderr=True).print(f"MLflow cannot be asked, so aliases are not compared: {error}", markup=False)
        return None


def _moved(store: Store, model: str, aliases: Mapping[str, str] | None) -> list[Finding]:
    """
    Report aliases that differ from those of the newest entry that can be read.

    :param aliases: those in MLflow; None if it has no such model
    """
    last = AuditTrail(store, model).last_readable()
    wanted = last.stages.aliases if last is not None else {}
    if (aliases or {}) == wanted:
        return []
    if aliases is None and last is not None:
        gone = (
            f"MLflow has no model {model}, and by the trail it has {_named(wanted)}. Restore it there; where it was "
            f"deleted on purpose, record that: mlops models adopt {model} --why ..."
        )
        return [Finding(number=last.number, kind="moved", text=gone)]
    aliases = aliases or {}
    if last is None:
        return [
            Finding(number=0, kind="missing", text=f"the aliases are {_named(aliases)}, and there is no trail at all")
        ]
    said = f"the aliases are {_named(aliases)}, and by the trail {_named(wanted)}"
    return [Finding(number=last.number, kind="moved", text=said)]


def _shown(text: str) -> str:
    """Return text of others as a cell of a table."""
    return escape(printable(text))


def _named(aliases: Mapping[str, str]) -> str:
    return ", ".join(f"{alias} {version}" for alias, version in aliases.items()) or "none"
