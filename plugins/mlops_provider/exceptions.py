"""Failures as Airflow sees them: which class is raised decides whether the task is retried."""

from __future__ import annotations

from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException


class WiringError(TypeError):
    """A step was given the output of the wrong step. Raised while the DAG is parsed."""


class StepFailedError(AirflowFailException):
    """The step said that trying again cannot help: bad data or bad configuration."""


class CanaryFailedError(StepFailedError):
    """A version did not do well as a canary, and is archived."""


class StepRetryableError(AirflowException):
    """The step failed for a reason that may pass."""


class StepOutageError(StepRetryableError):
    """
    A service that the step needs is away. Raised to Airflow only where that took longer than the patience for it.

    :param service: of :mod:`mlops.contract.outages`
    """

    def __init__(self, message: str, service: str) -> None:
        super().__init__(message)
        self.service = service


class StepLostError(AirflowException):
    """The step's process ended without a result document: killed, out of memory, evicted."""


def is_lost(failure: Any) -> bool:
    """
    Return True if a step's process has ended without a word of its own, as one does that somebody ends.

    :param failure: what its task has said of why it failed, as a mapping; anything else is no word of it
    """
    return not isinstance(failure, dict) or failure.get("type") == StepLostError.__name__
