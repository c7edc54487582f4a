"""Keys and signed documents: who may read them, and what is not taken for one."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from signed_decisions import FOREIGN, KEY, TRUSTED

from mlops.signing.envelope import EnvelopeError, seal, statement_of, unseal
from mlops.signing.keys import UnusableKeyError, load_key, load_public_keys, make_key, of_person, public_file
from mlops.signing.packages import PackageSeal
from mlops.signing.seals import Seal

STATEMENT = statement_of("toy/3", "0" * 64, "urn:test", {"approved": True})


def test_a_key_is_its_owners_alone_and_made_once(tmp_path: Path) -> None:
    path = tmp_path / "keys/release.pem"
    make_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = load_key(path).public
    assert load_public_keys(public_file(path)) == [key]
    make_key(path)
    assert load_key(path).public == key, "an existing one stays: what it signed would count no more"


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "release.pem"
    make_key(path)
    path.chmod(0o644)
    with pytest.raises(UnusableKeyError, match=r"may be read by others \(mode 644\): chmod 600"):
        load_key(path)


def test_a_rotated_key_counts_as_long_as_it_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "release.pub"
    path.write_text(f"{TRUSTED[0]}  # until March\n\n{FOREIGN.public}\n")
    for key in (KEY, FOREIGN):
        assert unseal(seal(STATEMENT, key), load_public_keys(path), "urn:test") == STATEMENT
    path.write_text(FOREIGN.public)
    with pytest.raises(EnvelopeError, match="it is signed by .*, and trusted are"):
        unseal(seal(STATEMENT, KEY), load_public_keys(path), "urn:test")


def test_a_persons_key_signs_entries_and_nothing_else(tmp_path: Path) -> None:
    """Broken: an approver who may write the store signs another one's yes."""
    make_key(tmp_path / "vera.pem", person=True)
    vera = load_key(tmp_path / "vera.pem")
    trusted = tmp_path / "release.pub"
    trusted.write_text(TRUSTED[0] + "\n" + public_file(tmp_path / "vera.pem").read_text())
    keys = load_public_keys(trusted)
    seal = Seal(model="toy", number=1, sha256="0" * 64, signed_for="vera: why", at="2026-11-22T12:00:00+00:00")
    assert [Seal.unsealed(seal.sealed(key), keys) for key in (KEY, vera)] == [seal, seal]
    package = PackageSeal(model="toy", version="1", sha256="0" * 64, files="x", signed_for="the night")
    assert PackageSeal.unsealed(package.sealed(KEY), keys) == package
    with pytest.raises(EnvelopeError, match="it is signed by .*, and trusted are"):
        PackageSeal.unsealed(package.sealed(vera), keys)
    with pytest.raises(EnvelopeError, match="no key is trusted to sign such a record"):
        PackageSeal.unsealed(package.sealed(vera), keys[1:])


def test_a_key_is_a_persons_or_not(tmp_path: Path) -> None:
    """Broken: a mistyped word trusts a person's key with approvals."""
    path = tmp_path / "release.pub"
    path.write_text(f"{FOREIGN.public}  person # Vera's\n{TRUSTED[0]}\n")
    assert load_public_keys(path) == [of_person(FOREIGN.public), TRUSTED[0]]
    path.write_text(f"{FOREIGN.public} persn\n")
    with pytest.raises(UnusableKeyError, match="has 'persn' behind the key [0-9a-f]{16}: there may be 'person'"):
        load_public_keys(path)
    path.write_text(f"{FOREIGN.public} person\n{FOREIGN.public}\n")
    with pytest.raises(UnusableKeyError, match="has the key [0-9a-f]{16} twice, once as that of a person"):
        load_public_keys(path)


def test_a_statement_of_another_kind_is_refused() -> None:
    """Broken: any signed document would do for a decision."""
    with pytest.raises(EnvelopeError, match="it is a 'urn:test', not a 'urn:other'"):
        unseal(seal(STATEMENT, KEY), TRUSTED, "urn:other")


SEALED = seal(STATEMENT, KEY)
ADDED = {"half a character": b'"\\ud800"', "no number": b"NaN"}


@pytest.mark.parametrize(
    "envelope",
    [
        *(pytest.param(SEALED[:-1] + b',"x":' + value + b"}", id=name) for name, value in ADDED.items()),
        pytest.param(b"[" * 200_000, id="nothing but brackets"),
        pytest.param(b"5", id="a number"),
        pytest.param(SEALED.replace(b'"keyid":"', b'"keyid":["'), id="no JSON"),
        pytest.param(b'{"payload":"","payloadType":"","signatures":[{"keyid":[],"sig":""}]}', id="a list for a key"),
        pytest.param(seal({"no": "statement"}, KEY), id="signed and no statement"),
        pytest.param(seal([1], KEY), id="signed and no document"),  # type: ignore[arg-type]
    ],
)
def test_whatever_is_no_envelope_is_an_envelope_error(envelope: bytes) -> None:
    """Broken: one damaged signature ends a check of all models, and a task by another error than its readers catch."""
    with pytest.raises(EnvelopeError):
        unseal(envelope, TRUSTED, "urn:test")


@pytest.mark.parametrize("text", ["", "# nothing", "not base64!", "c2hvcnQ="])
def test_what_is_no_public_key_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "release.pub"
    path.write_text(text)
    with pytest.raises(UnusableKeyError, match="no public key"):
        load_public_keys(path)
