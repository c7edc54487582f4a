"""The keys that release decisions and audit trails are signed and checked with, as the deployment names them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mlops.contract.outages import KEY_SERVICE
from mlops.signing.envelope import SignedRecord
from mlops.signing.keys import (
    PERSON,
    KeyServiceAwayError,
    SigningKey,
    UnusableKeyError,
    load_key,
    load_public_keys,
    of_person,
)
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError, StepOutageError


def check_can_sign(deployment: Deployment, task_id: str) -> None:
    """
    :raises StepFailedError: where there is no key, or what it signs would not be trusted
    :raises StepOutageError: where the service that holds it is away
    """
    with _key_errors():
        public = _signing_key(deployment, task_id).public
    trusted = trusted_keys(deployment)
    if public not in trusted:
        fix = f"add its public half, {public}"
        if of_person(public) in trusted:
            fix = f"its line, {public}, ends with {PERSON!r}, as of a key that signs no approvals: remove that word"
        raise StepFailedError(
            f"task {task_id!r}: what [mlops] release_key signs would not be trusted. In {deployment.public_keys_file} "
            f"{fix}"
        )


def signed(record: SignedRecord, deployment: Deployment, task_id: str) -> bytes:
    """
    The record in an envelope, signed with the deployment's private key.

    :raises StepFailedError: where there is none
    :raises StepOutageError: where the service that holds it is away
    """
    with _key_errors():
        return record.sealed(_signing_key(deployment, task_id))


def trusted_keys(deployment: Deployment) -> list[str]:
    """
    The public keys that release decisions are checked with.

    :raises StepFailedError: where there are none
    """
    path = deployment.public_keys_file
    if path is None:
        raise StepFailedError(
            "an approval is a signed record, and [mlops] names no file of trusted keys in release_public_keys: "
            f"`mlops keys show {deployment.release_key}` prints its line"
            if deployment.release_key is not None
            else "an approval is a signed record, and [mlops] names neither release_key nor release_public_keys: "
            "make a key with `mlops keys new FILE`"
        )
    try:
        return load_public_keys(path)
    except UnusableKeyError as error:
        raise StepFailedError(f"[mlops] {error}") from error


def trail_keys(deployment: Deployment) -> list[str]:
    """
    Return the public keys that entries of audit trails are checked with. There are none where the deployment has no key
    of its own: it signs nothing then, and nobody can tell who has written an entry.

    :raises StepFailedError: where it has one, and trusts none
    """
    return trusted_keys(deployment) if deployment.release_key is not None else []


def _signing_key(deployment: Deployment, task_id: str) -> SigningKey:
    if deployment.release_key is None:
        raise StepFailedError(
            f"task {task_id!r}: an approval is a signed record, and [mlops] release_key names no key: "
            "make one with `mlops keys new FILE`, where no step can read it"
        )
    return load_key(deployment.release_key)


@contextmanager
def _key_errors() -> Iterator[None]:
    """Raise errors of keys as those of a task."""
    try:
        yield
    except UnusableKeyError as error:
        raise StepFailedError(f"[mlops] release_key: {error}") from error
    except KeyServiceAwayError as error:
        raise StepOutageError(str(error), KEY_SERVICE) from error
