"""The ways in which the object store fails, by what a retry can do about each."""

from __future__ import annotations

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
    """The store refuses the request or the credentials: trying again cannot help."""

    retryable = False


class DamagedObjectError(BadDataError):
    """An object's bytes are not those that were written."""


KINDS: Final[Mapping[FailureClass, type[StoreError]]] = {
    FailureClass.AWAY: StoreAwayError,
    FailureClass.REFUSED: StoreRefusedError,
    FailureClass.OTHER: StoreError,
}
"""The error for each class of failure, see :func:`mlops.contract.outages.classify_store_error`."""
