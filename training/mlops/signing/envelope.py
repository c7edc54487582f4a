"""
Signed documents: in-toto statements in DSSE envelopes.

The format is that of https://github.com/secure-systems-lab/dsse and https://in-toto.io/Statement/v1, so that other
tools can verify them.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, ClassVar, Final, Self

from mlops.contract.refs import canonical_json
from mlops.signing.keys import SigningKey, UnusableKeyError, is_of_person, key_id, public_half, verify

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"


class EnvelopeError(ValueError):
    """A signed document is none, was changed, or was signed by a key that is not trusted."""


class SignedRecord(ABC):
    """
    A dataclass that is kept as the predicate of a signed statement.

    :cvar predicate_type: the kind of statement, so that none is taken for another
    :cvar people_sign: whether a key that is trusted as a person's may have signed it
    """

    __slots__ = ()
    predicate_type: ClassVar[str]
    people_sign: ClassVar[bool] = False

    @abstractmethod
    def subject(self) -> tuple[str, str]:
        """Name and SHA-256 of what the record is about."""

    @classmethod
    def from_predicate(cls, predicate: Mapping[str, Any]) -> Self:
        """From what :func:`dataclasses.asdict` made, by way of JSON."""
        return cls(**predicate)

    def sealed(self, key: SigningKey) -> bytes:
        """The record, signed; equal records give equal bytes."""
        name, digest = self.subject()
        predicate = asdict(self)  # type: ignore[call-overload]
        return seal(statement_of(name, digest, self.predicate_type, predicate), key)

    @classmethod
    def unsealed(cls, envelope: bytes, trusted: Iterable[str]) -> Self:
        """
        Read a record.

        :param trusted: keys of :func:`load_public_keys`
        :raises EnvelopeError: where it is not signed by one of them, by a person who may not, or was changed
        """
        statement = unseal(envelope, trusted, cls.predicate_type, people_sign=cls.people_sign)
        try:
            return cls.from_predicate(statement["predicate"])
        except (TypeError, KeyError) as error:
            raise EnvelopeError(f"it was written by another release ({error!r})") from error


def seal(statement: Mapping[str, Any], key: SigningKey) -> bytes:
    """Sign a statement; the envelope as JSON."""
    payload = canonical_json(statement)
    signature = {"keyid": key_id(key.public), "sig": _encode(key.sign(_signed_bytes(payload)))}
    return canonical_json({"payload": _encode(payload), "payloadType": PAYLOAD_TYPE, "signatures": [signature]})


def unseal(
    envelope: bytes, trusted: Iterable[str], predicate_type: str, *, people_sign: bool = False
) -> dict[str, Any]:
    """
    Check an envelope and return its statement.

    :param trusted: keys of :func:`load_public_keys`, any one of which must have signed it
    :param predicate_type: the kind of statement that it must be, so that none is taken for another
    :param people_sign: whether a person's key may have
    :raises EnvelopeError: with what is wrong
    """
    halves = [public_half(key) for key in trusted if people_sign or not is_of_person(key)]
    keys = {key_id(half): half for half in halves}
    if not keys:
        raise EnvelopeError("no key is trusted to sign such a record")
    try:
        return _statement(envelope, keys, predicate_type)
    except (EnvelopeError, UnusableKeyError):
        raise
    # Whoever may write the store chooses these bytes, and readers catch nothing but EnvelopeError.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise EnvelopeError(f"it is no DSSE envelope ({type(error).__name__}: {error})") from error


def _statement(envelope: bytes, keys: Mapping[str, str], predicate_type: str) -> dict[str, Any]:
    """
    Check an envelope and return its statement; bytes that are no envelope raise whatever its readers raise.

    :param keys: public keys by their ids
    """
    document = json.loads(envelope)
    payload = base64.b64decode(document["payload"], validate=True)
    signatures = [(entry["keyid"], base64.b64decode(entry["sig"], validate=True)) for entry in document["signatures"]]
    known = [(keys[key], signature) for key, signature in signatures if key in keys]
    if not known:
        named = ", ".join(str(key) for key, _ in signatures) or "no key"
        raise EnvelopeError(f"it is signed by {named}, and trusted are {', '.join(keys)}")
    for key, signature in known:
        if not verify(key, signature, _signed_bytes(payload)):
            raise EnvelopeError(f"it was changed after key {key_id(key)} had signed it")
    encoded = [
        {**entry, "sig": _encode(sig)} for entry, (_, sig) in zip(document["signatures"], signatures, strict=True)
    ]
    if canonical_json({**document, "payload": _encode(payload), "signatures": encoded}) != envelope:
        raise EnvelopeError("it was changed where nothing is signed: it is not in the form that it was written in")
    statement = json.loads(payload)
    is_ours = document["payloadType"] == PAYLOAD_TYPE
    if not is_ours or statement.get("_type") != STATEMENT_TYPE or statement.get("predicateType") != predicate_type:
        raise EnvelopeError(f"it is a {statement.get('predicateType')!r}, not a {predicate_type!r}")
    return dict(statement)


def statement_of(subject: str, digest: str, predicate_type: str, predicate: Mapping[str, Any]) -> dict[str, Any]:
    """
    An in-toto statement.

    :param digest: SHA-256 of the subject
    """
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": subject, "digest": {"sha256": digest}}],
        "predicateType": predicate_type,
        "predicate": dict(predicate),
    }


def _signed_bytes(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
