"""The connection to the MLflow server, with an immediate error if it cannot be reached."""

from __future__ import annotations

import os
import posixpath
import re
import sys
import urllib.error
import urllib.request
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Final

from mlops.contract.outages import MLFLOW, REFUSALS, FailureClass, classify_status
from mlops.contract.step import TRACKING_VARIABLES, BadConfigError, OutageError, StepError

if TYPE_CHECKING:
    from mlflow import MlflowClient

TIMEOUT_SECONDS: Final = 8.0
NOT_ACTIVE: Final = "must be in the 'active' state"
_CLIENT_STATUS: Final = re.compile(r"failed with error code (\d{3})|too many (\d{3}) error responses")
_OUTRUN: Final = re.compile("IntegrityError|UniqueViolation")
_NO_ANSWER: Final = "failed with exception"
_HEADER_PROVIDERS: Final = "mlflow.tracking.request_header.registry"


class TrackingError(StepError):
    """MLflow did not do what it was asked to. The error is retried."""


class TrackingAwayError(OutageError, TrackingError):
    """MLflow does not answer, or is overloaded."""

    service = MLFLOW


class DeniedError(TrackingError):
    """MLflow refuses the request or the credentials: trying again cannot help."""

    retryable = False


def tracking_error(verdict: FailureClass) -> type[TrackingError]:
    """Return the error class for the verdict on a failed request."""
    return {FailureClass.AWAY: TrackingAwayError, FailureClass.REFUSED: DeniedError}.get(verdict, TrackingError)


class LoginError(DeniedError):
    """MLflow does not know the user, or does not permit the request: a setting is wrong."""


def login_refused(tracking_uri: str, what: str) -> LoginError:
    """
    Return the error for an answer of 401 or 403 from MLflow.

    :param what: the request and the answer
    """
    user = os.environ.get(TRACKING_VARIABLES[0])
    who = f"the user {user!r}" if user else "this process, which has no user and password"
    return LoginError(
        f"MLflow at {tracking_uri} does not permit it to {who}: {what}; set [mlops] steps_login (or release_login, of "
        "register and promote) to an Airflow connection with user and password of one who may, see `mlops logins`"
    )


def check_address(tracking_uri: str) -> None:
    """
    Check that a tracking URI can be the address of a server.

    :raises BadConfigError: if it is not the address of a server
    """
    if not tracking_uri:
        raise BadConfigError("no MLflow server is set; set MLFLOW_TRACKING_URI, e.g. to http://127.0.0.1:5000")
    if not tracking_uri.startswith(("http://", "https://")):
        raise BadConfigError(
            f"MLFLOW_TRACKING_URI is {tracking_uri!r}; a server's http:// or https:// address is needed"
        )


def check_reachable(tracking_uri: str) -> None:
    """
    Ask the server for its health. This takes milliseconds, where importing mlflow takes seconds.

    :raises BadConfigError: if no server is set
    :raises TrackingError: within seconds, if it does not answer or answers with an error
    """
    check_address(tracking_uri)
    try:
        with urllib.request.urlopen(f"{tracking_uri.rstrip('/')}/health", timeout=TIMEOUT_SECONDS):  # noqa: S310
            pass
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        verdict = FailureClass.AWAY
        if isinstance(error, urllib.error.HTTPError):
            reason, verdict = f"{error.code} {error.reason}", classify_status(error.code)
        raise tracking_error(verdict)(
            f"MLflow at {tracking_uri} cannot be reached: {reason}; start it, or say where it is: "
            "[mlops] tracking_uri, AIRFLOW__MLOPS__TRACKING_URI"
        ) from error


def classify_client_error(error: Exception) -> FailureClass:
    """
    Return the verdict on an error of mlflow's client: MLflow is away, it refuses, or something else.

    :param error: error of the client, after its own tries
    """
    from mlflow.exceptions import MlflowException, RestException
    from requests import RequestException

    if isinstance(error, RequestException):
        return FailureClass.AWAY if error.response is None else classify_status(error.response.status_code)
    if isinstance(error, RestException):
        verdict = classify_status(error.get_http_status_code())
        # MLflow answers 400 also where another process was quicker, which passes.
        refused = error.error_code in REFUSALS and NOT_ACTIVE not in str(error) and not was_outrun(error)
        return FailureClass.OTHER if verdict is FailureClass.REFUSED and not refused else verdict
    if isinstance(error, MlflowException):
        said = str(error)
        if found := _CLIENT_STATUS.search(said):
            return classify_status(int(found[1] or found[2]))
        if _NO_ANSWER in said:
            return FailureClass.AWAY
    return FailureClass.OTHER


def was_outrun(error: Exception) -> bool:
    """
    Return True if MLflow looked for a row, found none, and another process had written it before MLflow did.

    :param error: error of MLflow, with the message of SQLite, PostgreSQL or MySQL
    """
    return _OUTRUN.search(str(error)) is not None


def connect(tracking_uri: str) -> MlflowClient:
    """
    Return a client of a server that answers.

    :raises BadConfigError: if no server is set
    :raises TrackingError: if it does not answer
    """
    check_reachable(tracking_uri)
    # mlflow's own defaults go on trying for several minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    from mlflow import MlflowClient

    _import_header_providers()
    return MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)


def _import_header_providers() -> None:
    """
    Import the plugins that add headers to MLflow's requests, without Feast's.

    Feast's adds headers only while Feast itself reads from MLflow, which no step does. MLflow's first request would
    import all of Feast to ask it: three seconds at the end of every training.
    """
    if _HEADER_PROVIDERS in sys.modules:
        return
    from mlflow.utils import plugins

    def find(group: str) -> list[EntryPoint]:
        return [plugin for plugin in find_all(group) if not plugin.value.startswith("feast.")]

    find_all = plugins._get_entry_points
    plugins._get_entry_points = find
    try:
        import_module(_HEADER_PROVIDERS)
    finally:
        plugins._get_entry_points = find_all


def allowed(name: str) -> str:
    """Return a metric's name as MLflow allows it: ``ndcg@10`` becomes ``ndcg_at_10``."""
    return name.replace("@", "_at_")


def allowed_parameter(name: str) -> str:
    """Return a parameter's name as MLflow allows it: ``model_args.drop*`` has a ``_`` for the ``*``."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def check_metric_name(name: str) -> None:
    """
    Check MLflow's own rule for metric names when a metric is first logged, and not hours later on the server.

    :raises BadConfigError: naming the metric
    """
    path = posixpath.normpath(name)
    if (
        len(name) > 250
        or not re.fullmatch(r"[/\w.\- :]+", name)
        or path != name
        or path == "."
        or path.startswith(("..", "/"))
    ):
        raise BadConfigError(
            f"MLflow does not take a metric named {name!r}: use at most 250 letters, digits, '_', '-', '.', ' ', ':' "
            "and '/' between words"
        )
