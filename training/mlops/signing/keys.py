"""
Keys that sign: in a file, or in a key management service, which shows its key to nobody and signs with it.

A public key is written as the base64 of its SubjectPublicKeyInfo (RFC 5280), on one line, as ``openssl pkey -in FILE
-pubout -outform DER | base64 -w0`` prints it; its id is the start of the SHA-256 of what is encoded. A trusted key is
such a line; ``person`` behind it says that a person has it, who signs entries of audit trails and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from mlops.signing.aws import AwsAwayError, AwsRefusedError, aws_errors

PERSON: Final = "person"
"""Stands behind a trusted key that a person has."""

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from securesystemslib.signer import Signer  # type: ignore[attr-defined]


class UnusableKeyError(ValueError):
    """A key, or a file of keys, cannot be used; the message says what to do."""


class KeyServiceAwayError(Exception):
    """The service that holds a key cannot be reached, or is too busy: it may pass."""


class SigningKey(Protocol):
    """What signs."""

    @property
    def public(self) -> str:
        """Return the public half of the key."""

    def sign(self, data: bytes) -> bytes:
        """:raises KeyServiceAwayError: where another machine signs, and is away"""


class FileKey:
    """An Ed25519 key in this process."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @property
    def public(self) -> str:
        return _written(self._key.public_key())

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


class ServiceKey:
    """
    A key of a key management service, asked through securesystemslib; nothing is asked before it is used.

    :param uri: ``<service>:<name of the key>``
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @property
    def public(self) -> str:
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        public = load_pem_public_key(self._signer.public_key.keyval["public"].encode())
        try:
            _check_kind(public)
        except TypeError as error:
            raise UnusableKeyError(f"the key {self.uri} is {error}: make one of the kind ECC_NIST_P256") from error
        return _written(public)  # type: ignore[arg-type]

    def sign(self, data: bytes) -> bytes:
        with _service(self.uri):
            return bytes.fromhex(self._signer.sign(data).signature)

    @cached_property
    def _signer(self) -> Signer:
        scheme, _, name = self.uri.partition(":")
        with _service(self.uri):
            return SERVICES[scheme](name)


def _aws(name: str) -> Signer:
    """:param name: id, ARN, or alias of a key of AWS KMS; credentials and region are those of boto3"""
    from securesystemslib.signer import AWSSigner  # type: ignore[attr-defined]

    return AWSSigner.from_priv_key_uri(*AWSSigner.import_(name))


SERVICES: Final[Mapping[str, Callable[[str], Signer]]] = {"awskms": _aws}
"""What asks for a key, by the scheme of its URI."""


def load_key(named: str | Path) -> SigningKey:
    """
    :param named: a file with an Ed25519 key in PEM, or the URI of a key in a service, ``awskms:alias/NAME``
    :raises UnusableKeyError: where the file is missing, holds no such key, or may be read by others than its owner
    """
    if is_in_service(str(named)):
        return ServiceKey(str(named))
    return FileKey(_from_file(Path(named)))


def is_in_service(named: str) -> bool:
    """
    Whether a key is named by the URI of a service, not as a file.

    :raises UnusableKeyError: where it is a URI of a service that is not known
    """
    scheme = re.match(r"([a-z][a-z0-9]+):", named)
    if scheme is not None and scheme[1] not in SERVICES:
        raise UnusableKeyError(f"the key {named}: keys are files, or in {', '.join(f'{known}:' for known in SERVICES)}")
    return scheme is not None


def verify(public: str, signature: bytes, data: bytes) -> bool:
    """
    :param public: a key, without what stands behind it
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256

    key = _public(public)
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, data)
        else:
            key.verify(signature, data, ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def key_id(public: str) -> str:
    return hashlib.sha256(base64.b64decode(public)).hexdigest()[:16]


def make_key(path: Path, *, person: bool = False) -> None:
    """
    Write a new private key, readable by its owner only, and ``<path>.pub`` with the line that trusts it; once.

    :param person: whether a person has it
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = Ed25519PrivateKey.generate()
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    partial.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = FileKey(key).public
    public_file(path).write_text(f"{of_person(public) if person else public}\n")
    partial.rename(path)  # last: a key without its public half would be of no use


def load_public_keys(path: Path) -> list[str]:
    """
    Read the trusted keys of a file, one a line; a rotation adds the new one, and the old one stays as long as what it
    signed counts.

    :return: each as ``KEY``, or as ``KEY person``
    :raises UnusableKeyError: where there is none, a line is none, or a key is a person's and not
    """
    try:
        lines = [" ".join(line.partition("#")[0].split()) for line in path.read_text().splitlines()]
    except OSError as error:
        raise UnusableKeyError(f"the public keys {path} cannot be read: {error.strerror}") from error
    keys = [line for line in lines if line]
    for key in keys:
        public, _, behind = key.partition(" ")
        try:
            _public(public)
        except (ValueError, TypeError, binascii.Error) as error:
            raise UnusableKeyError(
                f"{path} has a line that is no public key, Ed25519 or P-256 in base64: {key[:50]!r} ({error})"
            ) from error
        if behind not in ("", PERSON):
            raise UnusableKeyError(
                f"{path} has {behind!r} behind the key {key_id(public)}: there may be {PERSON!r}, or nothing but a "
                "comment, # ..."
            )
        if of_person(key) in keys:
            raise UnusableKeyError(
                f"{path} has the key {key_id(public)} twice, once as that of a {PERSON}: remove one of the lines"
            )
    if not keys:
        raise UnusableKeyError(f"{path} holds no public key")
    return keys


def of_person(public: str) -> str:
    """Return the line that trusts a key as that of a person."""
    return f"{public} {PERSON}"


def is_of_person(trusted: str) -> bool:
    return trusted.endswith(f" {PERSON}")


def public_half(trusted: str) -> str:
    """Return a trusted key without what stands behind it."""
    return trusted.removesuffix(f" {PERSON}")


def public_file(key: Path) -> Path:
    """Where the public half of a private key is."""
    return key.with_name(f"{key.name}.pub")


def _from_file(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        mode, data = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise UnusableKeyError(f"the key {path} cannot be read: {error.strerror}") from error
    if mode & 0o037:  # a group may read it: Kubernetes mounts a Secret so for a user who is not root
        raise UnusableKeyError(f"the key {path} may be read by others (mode {mode & 0o777:o}): chmod 600 {path}")
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise UnusableKeyError(f"{path} holds no private key in PEM: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UnusableKeyError(f"{path} holds a {type(key).__name__}, not an Ed25519 key")
    return key


def _public(written: str) -> Ed25519PublicKey | EllipticCurvePublicKey:
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    key = load_der_public_key(base64.b64decode(written, validate=True))
    _check_kind(key)
    return key  # type: ignore[return-value]


def _check_kind(key: object) -> None:
    """:raises TypeError: where nothing here verifies its signatures"""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    is_p256 = isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1)
    if not is_p256 and not isinstance(key, Ed25519PublicKey):
        raise TypeError(f"a {type(key).__name__}, not one of Ed25519 or P-256")


def _written(key: Ed25519PublicKey | EllipticCurvePublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return base64.b64encode(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()


@contextmanager
def _service(uri: str) -> Iterator[None]:
    """Says of its errors whether they may pass."""
    from securesystemslib.exceptions import Error

    try:
        with aws_errors(f"the key {uri}"):
            yield
    except AwsAwayError as error:
        raise KeyServiceAwayError(str(error)) from error
    except AwsRefusedError as error:
        raise UnusableKeyError(str(error)) from error
    except Error as error:
        raise UnusableKeyError(f"the key {uri} cannot be used: {error}") from error
