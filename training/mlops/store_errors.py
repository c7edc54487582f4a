"""The ways in which the object store fails, by what a retry can do about each."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

from mlops.contract.outages import STORE, FailureClass
from mlops.contract.step import BadDataError, OutageError, StepError


class StoreError(StepError):
    """The store cannot be read or written just now. The error is retried, because stores recover."""


class StoreAwayError(OutageError, StoreError):
    """The store does not answer, or is overloaded, for longer than its client tries."""

    service = STORE


class StoreRefusedError(StoreError):
    """The store refuses the request or the credentials: trying again cannot help, unless they change."""

    retryable = False


class StoreCredentialsError(StoreRefusedError):
    """The store takes the credentials for expired or unknown. The error is retried: a later try is given newer ones."""

    retryable = True

    def __str__(self) -> str:
        return (
            f"{super().__str__()}. The store takes the credentials for expired, or does not know them: a step is tried "
            "again, with those that are there by then. If that fails too, look at who renews AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or at the service account of the pod"
        )


class StoreClockError(StoreRefusedError):
    """The store takes the time of a request for wrong. The error is retried: it may run on another machine then."""

    retryable = True

    def __str__(self) -> str:
        return (
            f"{super().__str__()}. The clock of {socket.gethostname()} and that of the store differ too much: a step "
            "is tried again, perhaps on another machine. If that fails too, look at both clocks (NTP)"
        )


class DamagedObjectError(BadDataError):
    """An object's bytes are not those that were written."""


KINDS: Final[Mapping[FailureClass, type[StoreError]]] = {
    FailureClass.AWAY: StoreAwayError,
    FailureClass.REFUSED: StoreRefusedError,
    FailureClass.CREDENTIALS: StoreCredentialsError,
    FailureClass.CLOCK: StoreClockError,
    FailureClass.OTHER: StoreError,
}
"""The error for each class of failure, see :func:`mlops.contract.outages.classify_store_error`."""
