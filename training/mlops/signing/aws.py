"""Errors of AWS's services, as boto3 raises them: what may pass, and what the same request would get again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mlops.contract.outages import FailureClass, classify_status


class AwsAwayError(Exception):
    """A service cannot be reached, or is too busy: it may pass."""


class AwsRefusedError(ValueError):
    """A service refused, or cannot be asked as things are set."""


@contextmanager
def aws_errors(what: str) -> Iterator[None]:
    """
    :param what: begins the message, e.g. ``the key awskms:alias/x``
    :raises AwsAwayError: where it may pass
    :raises AwsRefusedError: else
    """
    try:
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
        from botocore.exceptions import ConnectionError as NoConnectionError
    except ImportError as error:
        raise AwsRefusedError(f"{what} is asked for by boto3, which is not installed: {error}") from error

    try:
        yield
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = error.response.get("Error", {}).get("Code", "")
        # KMS says 400 for all of a caller's mistakes, and for too many calls.
        is_busy = "Throttling" in code or code in ("LimitExceededException", "DependencyTimeoutException")
        if is_busy or status >= 500 or classify_status(status) is FailureClass.AWAY:
            raise AwsAwayError(f"{what}: its service is busy: {error}") from error
        raise AwsRefusedError(f"{what} cannot be used: {error}") from error
    except (NoConnectionError, HTTPClientError) as error:
        raise AwsAwayError(f"{what}: its service does not answer: {error}") from error
    except BotoCoreError as error:
        raise AwsRefusedError(f"{what} cannot be used: {error}") from error
