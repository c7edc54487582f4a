"""
MLflow's REST API, as far as a training in progress needs it.

mlflow's own client takes seconds to import, holds 200 MB, and keeps the interpreter's lock for 24 ms to send 1,000
metrics; this takes 3 ms. https://mlflow.org/docs/latest/api_reference/rest-api.html
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import requests
from requests.utils import get_netrc_auth

from mlops.contract.outages import FailureClass, classify_status
from mlops.contract.step import WORKSPACE_HEADER, WORKSPACE_VARIABLE
from mlops.tracking.connection import NOT_ACTIVE, TrackingAwayError, TrackingError, login_refused, tracking_error

TIMEOUT_SECONDS: Final = (5.0, 15.0)
"""Seconds to connect, and to wait for bytes of the answer."""
PAGE_SIZE: Final = 10_000
TOO_LARGE: Final = "TOO_LARGE"
_TRY_AGAIN: Final = frozenset({408, 425, 429})
"""HTTP statuses below 500 after which the request is sent again: load passes."""
_NO_LOGIN: Final = frozenset({401, 403})
_OWN_CLIENT_SETTINGS: Final = ("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4")


class RefusedError(TrackingError):
    """The server refused to do this."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
        """MLflow's error code, e.g. ``RESOURCE_DOES_NOT_EXIST``."""

    @property
    def blames_content(self) -> bool:
        """True if a part of the request may be accepted where the whole is not."""
        return self.code in {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST", TOO_LARGE}

    @property
    def is_gone(self) -> bool:
        """True if the run was deleted: by a person, or as surplus by a process that made one at the same moment."""
        return self.code == "RESOURCE_DOES_NOT_EXIST" or NOT_ACTIVE in str(self)


class Rest:
    """A connection that is kept open. For one thread."""

    def __init__(self, tracking_uri: str) -> None:
        self.tracking_uri = tracking_uri.rstrip("/")
        self._session: requests.Session | None = None

    def get(self, path: str, **query: str | int) -> dict[str, Any]:
        """
        Send a GET request.

        :param path: below ``/api/2.0/mlflow/``, e.g. ``runs/get``
        """
        return self._call("GET", path, params=query)

    def post(self, path: str, body: Mapping[str, Any] | bytes) -> dict[str, Any]:
        """
        Send a POST request.

        :param body: bytes are JSON already
        """
        return self._call("POST", path, data=body if isinstance(body, bytes) else json.dumps(body).encode())

    def pages(self, path: str, field: str, **query: str | int) -> Iterator[dict[str, Any]]:
        """Iterate over the entries of a list that comes in pages."""
        token: dict[str, str] = {}
        while True:
            page = self.get(path, max_results=PAGE_SIZE, **query, **token)
            yield from page.get(field, [])
            if not page.get("next_page_token"):
                return
            token = {"page_token": page["next_page_token"]}

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        """
        Send a request, and return the answer.

        :raises RefusedError: if another try would get the same answer
        :raises LoginError: if the server does not know us (any more), or does not permit this
        :raises TrackingError: if the server is away or overloaded
        """
        try:
            self._session = self._session or _session(self.tracking_uri)
            url = f"{self.tracking_uri}/api/2.0/mlflow/{path}"
            answer = self._session.request(method, url, timeout=TIMEOUT_SECONDS, **arguments)
            document: dict[str, Any] = answer.json() if answer.ok else _error(answer)
        except ValueError as error:  # of JSON, which requests makes an OSError of its own of
            raise TrackingError(f"what answers at {self.tracking_uri} is not MLflow: {_reason(error)}") from error
        except OSError as error:
            raise TrackingAwayError(f"MLflow at {self.tracking_uri} cannot be reached: {_reason(error)}") from error
        if answer.ok:
            return document
        message = str(document.get("message", "")).partition("\n")[0]
        if answer.status_code in _NO_LOGIN:
            raise login_refused(self.tracking_uri, f"{path}: {answer.status_code} {message}".strip())
        said = f"MLflow at {self.tracking_uri}: {path}: {answer.status_code} {message}"
        code = TOO_LARGE if answer.status_code == 413 else str(document.get("error_code", ""))
        # Without a code of MLflow's it is the word of a proxy, whose server may only be restarting.
        if answer.status_code in _TRY_AGAIN or answer.status_code >= 500 or not code:
            verdict = classify_status(answer.status_code)
            # A proxy's 400 may pass.
            raise tracking_error(FailureClass.OTHER if answer.status_code == 400 else verdict)(said)
        raise RefusedError(said, code)


def _reason(error: BaseException) -> str:
    """Return the message of the innermost error that requests and urllib3 wrap."""
    while error.__context__ is not None:
        error = error.__context__
    return (str(error) or repr(error)).splitlines()[0]


def _error(answer: requests.Response) -> dict[str, Any]:
    # Between us and MLflow may be proxies, whose errors are HTML.
    if "json" not in answer.headers.get("Content-Type", ""):
        return {"message": answer.reason}
    document: dict[str, Any] = answer.json()
    return document


def _session(tracking_uri: str) -> requests.Session:
    """Make a session with credentials as mlflow takes them: https://mlflow.org/docs/latest/self-hosting/security/"""
    session = requests.Session()
    session.headers["Content-Type"] = "application/json"
    settings = os.environ
    if workspace := settings.get(WORKSPACE_VARIABLE):
        session.headers[WORKSPACE_HEADER] = workspace
    if any(settings.get(name) for name in _OWN_CLIENT_SETTINGS) or Path("~/.mlflow/credentials").expanduser().exists():
        _authenticate(session, tracking_uri)
    elif settings.get("MLFLOW_TRACKING_USERNAME"):
        session.auth = (settings["MLFLOW_TRACKING_USERNAME"], settings.get("MLFLOW_TRACKING_PASSWORD", ""))
    elif token := settings.get("MLFLOW_TRACKING_TOKEN"):
        session.headers["Authorization"] = f"Bearer {token}"
    if settings.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in {"1", "true"}:
        session.verify = False
    elif authority := settings.get("MLFLOW_TRACKING_SERVER_CERT_PATH"):
        session.verify = authority
    session.cert = settings.get("MLFLOW_TRACKING_CLIENT_CERT_PATH")
    _read_environment_once(session, tracking_uri)
    return session


def _read_environment_once(session: requests.Session, tracking_uri: str) -> None:
    """Read proxies, certificates and netrc once; requests would look for them at each request: half of its time."""
    found = session.merge_environment_settings(tracking_uri, {}, None, None, None)
    session.proxies, session.verify, session.cert = found["proxies"], found["verify"], found["cert"]
    if "Authorization" not in session.headers:
        session.auth = session.auth or get_netrc_auth(tracking_uri)
    session.trust_env = False


def _authenticate(session: requests.Session, tracking_uri: str) -> None:
    """
    Set up authentication by plugins, signatures and the credentials file: only mlflow knows them, worth its import.
    """
    from mlflow.tracking.request_auth.registry import fetch_auth
    from mlflow.utils.credentials import get_default_host_creds

    credentials = get_default_host_creds(tracking_uri)
    if credentials.aws_sigv4:
        from requests_auth_aws_sigv4 import AWSSigV4  # type: ignore[import-not-found]

        session.auth = AWSSigV4("execute-api")
    elif credentials.auth:
        session.auth = fetch_auth(credentials.auth)
    elif credentials.username and credentials.password:
        session.auth = (credentials.username, credentials.password)
    elif credentials.token:
        session.headers["Authorization"] = f"Bearer {credentials.token}"
