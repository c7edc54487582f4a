"""A key in a key management service, as one in a file: what it signs, and what is said where it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from services import kms_server
from signed_decisions import KEY, TRUSTED

from mlops.signing.envelope import EnvelopeError, seal, statement_of, unseal
from mlops.signing.keys import (
    KeyServiceAwayError,
    UnusableKeyError,
    load_key,
    load_public_keys,
    of_person,
    public_file,
)
from mlops_provider.cli import main
from mlops_provider.local.ports import free_port

STATEMENT = statement_of("toy/3", "0" * 64, "urn:test", {"approved": True})
RELEASE = "awskms:alias/release"


@pytest.fixture(scope="module")
def kms() -> Iterator[dict[str, str]]:
    with kms_server() as variables:
        yield variables


@pytest.fixture(autouse=True)
def at_kms(kms: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps credentials
    for name, value in kms.items():
        monkeypatch.setenv(name, value)


def test_a_key_in_kms_signs_what_its_public_half_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Broken: who may not keep keys in files could release nothing."""
    assert main(["keys", "show", RELEASE]) == 0
    trusted = tmp_path / "release.pub"
    trusted.write_text(capsys.readouterr().out + TRUSTED[0] + "\n")
    keys = load_public_keys(trusted)
    envelope = seal(STATEMENT, load_key(RELEASE))
    assert unseal(envelope, keys, "urn:test") == STATEMENT
    assert unseal(seal(STATEMENT, KEY), keys, "urn:test") == STATEMENT, "keys of both kinds are trusted side by side"
    with pytest.raises(EnvelopeError, match="it is signed by .*, and trusted are"):
        unseal(envelope, TRUSTED, "urn:test")
    forged = envelope.replace(b"eyJ", b"eyK", 1)
    with pytest.raises(EnvelopeError, match="changed after key"):
        unseal(forged, keys, "urn:test")


def test_a_person_gets_a_line_that_trusts_no_approval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Broken: whoever runs the deployment trusts a colleague's key with everybody's answers."""
    key, trusted = tmp_path / "vera.pem", tmp_path / "release.pub"
    assert main(["keys", "new", "--person", str(key)]) == 0
    printed = capsys.readouterr().out
    trusted.write_text(printed)
    assert load_public_keys(trusted) == load_public_keys(public_file(key)) == [of_person(load_key(key).public)]
    for again in ([], ["--person"]):
        assert main(["keys", "show", *again, str(key)]) == 0
        assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("awskms:alias/rsa", "the key awskms:alias/rsa is a RSAPublicKey, not one of Ed25519 or P-256: make one of"),
        ("awskms:alias/other", "the key awskms:alias/other cannot be used: .*NotFoundException.*alias/other"),
        ("gcpkms:projects/x", "the key gcpkms:projects/x: keys are files, or in awskms:"),
    ],
)
def test_what_is_no_key_to_sign_with_is_named(named: str, said: str) -> None:
    with pytest.raises(UnusableKeyError, match=said):
        print(load_key(named).public)


def test_a_key_of_kms_is_made_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", RELEASE]) == 1
    assert "make the key in its service" in capsys.readouterr().out.replace("\n", " ")


def test_a_service_that_is_not_there_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a KMS that is away for a minute ends the night of everybody who releases."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(KeyServiceAwayError, match=f"the key {RELEASE}: its service does not answer"):
        load_key(RELEASE).sign(b"")


def test_without_credentials_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(UnusableKeyError, match="cannot be used: Unable to locate credentials"):
        load_key(RELEASE).sign(b"")
