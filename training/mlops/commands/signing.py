"""The signature of a person for an entry of the audit trail, by a key of their own or that of the deployment."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from mlops.contract.step import BadConfigError
from mlops.registry.audit import Entry
from mlops.signing.envelope import EnvelopeError
from mlops.signing.keys import KeyServiceAwayError, SigningKey, UnusableKeyError, load_key, of_person, public_half
from mlops.signing.seals import Seal, seal_key
from mlops.store import Store


def add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key",
        metavar="FILE",
        help="your private key, which signs the entry: `mlops keys new --person FILE` makes one, and prints the line "
        "of the deployment's [mlops] release_public_keys that trusts it; or awskms: and the id, ARN or alias of a key "
        "in AWS KMS (default: the deployment's own, where you may use it)",
    )
    parser.add_argument("--trusted", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--signed", type=Path, help=argparse.SUPPRESS)


def tell_signed(file: Path | None, entry: Entry) -> None:
    """
    Report to the caller, who can reach Airflow, which entry was signed.

    :param file: file of the option ``--signed``
    """
    if file is not None:
        document = {"model": entry.model, "number": entry.number, "sha256": entry.artifact.sha256}
        file.write_text(json.dumps(document))


def signing_key(named: str | None, trusted: Sequence[str]) -> SigningKey:
    """
    Load the key that entries are signed with.

    :param named: a file, or the URI of a key in a service
    :param trusted: keys of the deployment, as of ``load_public_keys``; empty if it names none
    :raises BadConfigError: if there is none that can be used
    """
    if named is None:
        raise BadConfigError(
            "an entry of the audit trail is signed: name your private key by --key FILE. `mlops keys new --person "
            "FILE` makes one, and [mlops] release_public_keys lists those that are trusted"
        )
    try:
        key = load_key(named)
        public = key.public
    except (UnusableKeyError, KeyServiceAwayError) as error:
        raise BadConfigError(str(error)) from error
    if trusted and public not in map(public_half, trusted):
        raise BadConfigError(
            f"what {named} signs would not be trusted: add its line to the deployment's [mlops] release_public_keys, "
            f"{of_person(public)}"
        )
    return key


def sign_entry(store: Store, entry: Entry, key: SigningKey, signed_for: str, trusted: Sequence[str]) -> bool:
    """
    Sign an entry, unless somebody has.

    :param signed_for: the person and their reason
    :param trusted: public keys whose signature is left as it is
    :return: True if it was signed now
    """
    there = seal_key(entry.model, entry.number)
    seal = Seal(
        model=entry.model,
        number=entry.number,
        sha256=entry.artifact.sha256,
        signed_for=signed_for,
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )
    envelope = seal.sealed(key)
    if store.put_new(there, envelope):
        return True
    try:
        before = Seal.unsealed(store.get(there), {*trusted, key.public})
    except EnvelopeError:
        store.put(there, envelope)
        return True
    if (before.model, before.number, before.sha256) != (seal.model, seal.number, seal.sha256):
        raise BadConfigError(
            f"{there} in {store.uri} is the signature of another entry, with SHA-256 {before.sha256[:12]}...: see "
            f"mlops audit verify {entry.model}"
        )
    return False


def person() -> str:
    """Return who is at the command line, as the machine knows them: environment variables can be set to anything."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
