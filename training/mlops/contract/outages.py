"""
Which errors say that a service is away, and which that it refuses. Standard library only: all runtimes ask here.

Away is what passes without anybody's doing anything here: no connection, a name that does not resolve, a timeout, an
overload. A wrong address looks the same, so that the log names it each time. Refused is what the same request would
get again; some refusals are of the credentials or the clock alone, which a later try may have better.
"""

from __future__ import annotations

import html
import re
from enum import Enum
from typing import Final

MLFLOW: Final = "MLflow"
STORE: Final = "the store"
KEY_SERVICE: Final = "the key service"
ANCHOR_BUCKET: Final = "the bucket of anchors"
"""Services that are waited for, as a failure and people call them."""
AWAY_STATUSES: Final = frozenset({408, 425, 429, 502, 503, 504})
REFUSED_STATUSES: Final = frozenset({400, 401, 403})
REFUSALS: Final = frozenset(
    {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"}
)
"""Error codes of MLflow (``mlflow.protos.databricks_pb2``) that the same request would get again."""
_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")
_CREDENTIALS: Final = ("ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "TokenRefreshRequired")
_CLOCK: Final = "RequestTimeTooSkewed"
_CODE: Final = re.compile(rf"<Code>({'|'.join((*_CREDENTIALS, _CLOCK))})</Code>")
"""Error codes of S3 that a later request may not get: it has newer credentials, or comes from another machine."""
_DEBUG: Final = "\n\nDebug source:"
"""In obstore's errors, before what is of use to its authors."""
_LONGEST_CAUSE: Final = 600
_MISTAKES: Final = ("169.254.169.254", "builder error")
"""No credentials are configured, so that a cloud's machine is asked for some; the address is none, or of a scheme that
is not allowed."""


class FailureClass(Enum):
    AWAY = "away"
    REFUSED = "refused"
    CREDENTIALS = "credentials"
    """Refused for credentials that have expired, or are not known yet: a later try has others."""
    CLOCK = "clock"
    """Refused because the machine's clock is wrong: a later try may run on another machine."""
    OTHER = "other"
    """Nothing is known: it may pass, or not."""


def classify_status(status: int) -> FailureClass:
    """:param status: of HTTP"""
    if status in AWAY_STATUSES:
        return FailureClass.AWAY
    return FailureClass.REFUSED if status in REFUSED_STATUSES else FailureClass.OTHER


def classify_store_error(error: BaseException) -> FailureClass:
    """:param error: of obstore, which has one class for most, and tells the rest in words"""
    said = str(error)
    if found := _STATUS.search(said):
        if int(found[1]) in REFUSED_STATUSES and (code := _CODE.search(said)):
            return FailureClass.CLOCK if code[1] == _CLOCK else FailureClass.CREDENTIALS
        # S3's own InternalError is worth another request, as its documentation says.
        return FailureClass.AWAY if found[1] == "500" else classify_status(int(found[1]))
    if "HTTP error" not in said or any(sign in said for sign in _MISTAKES):
        return FailureClass.OTHER
    return FailureClass.AWAY


def store_cause(error: BaseException) -> str:
    """
    Return what a store said, on one line.

    :param error: of obstore, or of the file system. Of S3's and Azure's answer in XML the code and the message are left
    """
    said = str(error).partition(_DEBUG)[0]
    code, message = (re.search(rf"<{tag}>(.*?)</{tag}>", said, re.DOTALL) for tag in ("Code", "Message"))
    if code is not None:
        words = [said.partition("<")[0].rstrip(" :"), code[1], *([message[1]] if message else [])]
        said = html.unescape(": ".join(words))
    said = " ".join(said.split())
    return said if len(said) <= _LONGEST_CAUSE else f"{said[:_LONGEST_CAUSE]} ..."
