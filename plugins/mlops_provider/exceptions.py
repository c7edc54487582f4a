"""Failures as Airflow sees them: which class is raised decides whether the task is retried."""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowException, AirflowFailException


class WiringError(TypeError):
    """A step was given the output of the wrong step. Raised while the DAG is parsed."""


class StepFailedError(AirflowFailException):
    """The step said that trying again cannot help: bad data or bad configuration."""


class StepRetryableError(AirflowException):
    """The step failed for a reason that may pass."""


class StepLostError(AirflowException):
    """The step's process ended without a result document: killed, out of memory, evicted."""
