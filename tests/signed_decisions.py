"""Answers to approvals, as the approve operator records them."""

from __future__ import annotations

import base64
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mlops.contract.refs import ModelVersionRef
from mlops.signing.decision import Decision, Question, binding, decision_key
from mlops.signing.keys import FileKey, SigningKey, of_person

KEY = FileKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
FOREIGN = FileKey(Ed25519PrivateKey.from_private_bytes(bytes(32)))
OTTOS = FileKey(Ed25519PrivateKey.from_private_bytes(bytes([1] * 32)))
"""Of a person: it signs entries of audit trails only."""
TRUSTED = [KEY.public, of_person(OTTOS.public)]


def decision(version: ModelVersionRef, person: str | None = "vera", answer: int = 0, **changes: Any) -> Decision:
    """
    An answer about a version.

    :param answer: index of the option
    :param changes: fields of the question
    """
    bound: dict[str, Any] = {**binding(version), "asked_by": "p/night/approve/-1/2", **changes}
    named = f"version {version.version} ({version.parent.digest()[:16]})"
    question = Question(subject="Into production?", body="", options=(f"Approve {named}", f"Reject {named}"), **bound)
    return Decision(
        question=question, answer=question.options[answer], person_id=person, person_name=person, why="good",
        channel="Airflow form", at="2026-11-22T12:00:00+00:00",
    )  # fmt: skip


def record(store: Any, given: Decision, number: int = 1, key: SigningKey = KEY) -> str:
    """Sign and store an answer; its key in the store."""
    name = decision_key(given.question, number)
    store.put(name, given.sealed(key))
    return name


def flipped(envelope: bytes, position: int) -> bytes:
    """An envelope with one bit of its payload changed."""
    document = json.loads(envelope)
    payload = bytearray(base64.b64decode(document["payload"]))
    payload[position % len(payload)] ^= 1
    return json.dumps({**document, "payload": base64.b64encode(payload).decode()}).encode()
