"""A version moves on signed records only: nobody who can write the store can make one, or use one for another."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from committed_refs import chain
from signed_decisions import FOREIGN, KEY, OTTOS, TRUSTED, decision, flipped, record

from mlops.contract.refs import ModelVersionRef
from mlops.contract.stage_moves import Live
from mlops.registry.consent import ApprovalMissingError, Consent, ForgedDecisionError
from mlops.store import Store

VERSION = chain()[ModelVersionRef]
assert isinstance(VERSION, ModelVersionRef)
OTHER = dataclasses.replace(VERSION, version="3")
FORGED = dataclasses.replace(VERSION, parent=dataclasses.replace(VERSION.parent, reason="Much better."))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}")


def live(*keys: str) -> Live:
    return Live(stage="staging", since="", approver="vera", decisions=keys)


def consent(store: Store, minimum: int = 1) -> Consent:
    return Consent(store=store, version=VERSION, trusted=TRUSTED, minimum=minimum)


def test_a_persons_signed_answer_is_enough(store: Store) -> None:
    key = record(store, decision(VERSION))
    consent(store).check(live(key))
    assert [(found.by, found.approved, found.why) for found in consent(store).read([key])] == [("vera", True, "good")]


def test_two_people_are_two_people(store: Store) -> None:
    """Broken: one person could answer twice."""
    vera, again = (record(store, decision(VERSION), number) for number in (1, 2))
    with pytest.raises(ApprovalMissingError, match="1 of 2 approvals"):
        consent(store, 2).check(live(vera, again))
    consent(store, 2).check(live(vera, record(store, decision(VERSION, "otto"), 3)))


def test_a_rejection_is_no_approval(store: Store) -> None:
    with pytest.raises(ApprovalMissingError):
        consent(store).check(live(record(store, decision(VERSION, answer=1))))


def test_nobodys_answer_stands_for_all_where_the_pipeline_says_so(store: Store) -> None:
    consent(store, 2).check(live(record(store, decision(VERSION, None))))


def test_an_approver_in_the_trail_is_not_enough(store: Store) -> None:
    """Broken: the trail lies where steps may write."""
    with pytest.raises(ApprovalMissingError, match="waits for an approval"):
        consent(store).check(live())


FORGERIES: dict[str, Callable[[Store], str]] = {
    "signed by another key": lambda store: record(store, decision(VERSION), key=FOREIGN),
    "signed by a person's own key": lambda store: record(store, decision(VERSION), key=OTTOS),
    "about another version": lambda store: record(store, decision(OTHER)),
    "about another lineage": lambda store: record(store, decision(FORGED)),
    "about another model": lambda store: record(store, decision(dataclasses.replace(VERSION, name="other"))),
    "of another report": lambda store: record(store, decision(VERSION, report_sha256="0" * 64)),
    "not there": lambda store: "models/toy/decisions/nowhere.json",
    "no envelope": lambda store: put(store, b"{}"),
    "empty": lambda store: put(store, b""),
    "not signed": lambda store: put(store, unsigned()),
    "with the trusted key's id and a foreign signature": lambda store: put(store, resigned()),
}  # fmt: skip


def put(store: Store, data: bytes) -> str:
    store.put("models/toy/decisions/forged.json", data)
    return "models/toy/decisions/forged.json"


def unsigned() -> bytes:
    return json.dumps({**json.loads(decision(VERSION).sealed(KEY)), "signatures": []}).encode()


def resigned() -> bytes:
    ours, theirs = (json.loads(decision(VERSION).sealed(key)) for key in (KEY, FOREIGN))
    ours["signatures"][0]["sig"] = theirs["signatures"][0]["sig"]
    return json.dumps(ours).encode()


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_record_is_refused(store: Store, forge: Callable[[Store], str]) -> None:
    """Broken: who may write the store would decide what goes into production."""
    with pytest.raises(ForgedDecisionError):
        consent(store).check(live(forge(store)))


def test_any_changed_bit_is_found(store: Store) -> None:
    envelope, rng = decision(VERSION).sealed(KEY), random.Random(7)
    for _ in range(100):
        key = put(store, flipped(envelope, rng.randrange(1 << 20)))
        with pytest.raises(ForgedDecisionError, match="does not hold: it was changed after key"):
            consent(store).check(live(key))
