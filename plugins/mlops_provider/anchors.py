"""
Anchors: the newest signed entry of each model's audit trail, kept where who may write the store cannot change it.

So an end of a trail which is cut off with all its traces is missed. Airflow's variables keep them, and a bucket
(:mod:`mlops_provider.locked_anchors`) where the deployment names one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

from obstore.store import ObjectStore

from mlops.contract.refs import shorten
from mlops.signing.seals import ANCHOR, entry_key
from mlops_provider.committed import read_bytes
from mlops_provider.exceptions import StepFailedError

DESCRIPTION: Final = "Newest signed entry of the audit trail: see `mlops audit verify`"


class AnchorError(StepFailedError):
    """A variable of Airflow knows no entry, but something else: whoever may edit variables has written it."""


class Keeper(Protocol):
    """Where anchors are kept."""

    def place(self, model: str) -> str:
        """For people."""

    def newest(self, model: str) -> Mapping[str, Any] | None:
        """
        Number and SHA-256 of the newest entry of a model; None where none is known.

        :raises AnchorError: where what is kept is no number and digest of an entry
        """

    def keep(self, model: str, number: int, sha256: str) -> None:
        """Know an entry as the newest."""


class Variables(Protocol):
    """Airflow's variables, as a task or its REST API reaches them."""

    def variable(self, key: str) -> str | None:
        """The value, or None where there is none of that name."""

    def set_variable(self, key: str, value: str, description: str) -> None:
        """Make it, or change it."""


class InAirflow:
    """Keeps anchors in Airflow's variables."""

    def __init__(self, variables: Variables) -> None:
        self._variables = variables

    def place(self, model: str) -> str:
        return f"Airflow's variable {ANCHOR + model!r}"

    def newest(self, model: str) -> Mapping[str, Any] | None:
        value = self._variables.variable(ANCHOR + model)
        return None if value is None else anchor_of(model, value)

    def keep(self, model: str, number: int, sha256: str) -> None:
        value = json.dumps({"number": number, "sha256": sha256})
        self._variables.set_variable(ANCHOR + model, value, DESCRIPTION)


def anchor_of(model: str, value: str | None) -> Mapping[str, Any]:
    """
    Read the anchor of a model.

    :param value: of Airflow's variable; None where Airflow itself cannot read it
    :raises AnchorError: where it is none
    """
    try:
        known = json.loads(value or "")
        number, sha256 = known["number"], known["sha256"]
        if type(number) is not int or not 0 < number < 10**12 or not isinstance(sha256, str):
            raise ValueError("it is no number and digest")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise AnchorError(
            f"Airflow's variable {ANCHOR + model!r} is {shorten(value)}, not the number and the SHA-256 of an entry: "
            "somebody has changed it. Compare the trail with a backup, then delete the variable: the next transition "
            "makes it again"
        ) from error
    return {"number": number, "sha256": sha256}


def difference(keeper: Keeper, store: ObjectStore, model: str) -> str | None:
    """Where the trail in the store is another one than the keeper knows, in a sentence."""
    known = keeper.newest(model)
    return None if known is None else _difference(keeper, store, model, known)


def note_newest(keeper: Keeper, store: ObjectStore, model: str, number: int, sha256: str) -> str | None:
    """
    Have a keeper know an entry as the newest one of a model, unless it knows a newer one.

    :return: where the trail is not the one that it knows, in a sentence; its note stays as it is then
    :raises AnchorError: where what it keeps is no number and digest of an entry
    """
    while (known := keeper.newest(model)) is None or known["number"] < number:
        if known is not None and (found := _difference(keeper, store, model, known)) is not None:
            return found
        # Airflow has no conditional write: an older one may be written by somebody else just now, so it is read again.
        keeper.keep(model, number, sha256)
    return _difference(keeper, store, model, known)


def _difference(keeper: Keeper, store: ObjectStore, model: str, anchor: Mapping[str, Any]) -> str | None:
    key = entry_key(model, anchor["number"])
    found = asyncio.run(read_bytes(store, key))
    digest = None if found is None else hashlib.sha256(found).hexdigest()
    if digest == anchor["sha256"]:
        return None
    return (
        f"the audit trail of {model} was tampered with: {key} in the store is "
        f"{'missing' if digest is None else f'another one (SHA-256 {digest[:12]}...)'}, and {keeper.place(model)} "
        f"knows it as {anchor['sha256'][:12]}...; see what was done by `mlops audit verify {model}`, and restore it "
        "from a backup. Where the store was replaced on purpose, delete the variable, and name another bucket"
    )
