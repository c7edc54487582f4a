"""Waiting, within a try of a task, for a service that is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import httpx
import tenacity

from mlops.contract import outages
from mlops.contract.durations import duration
from mlops.contract.outages import STORE, FailureClass, classify_status, classify_store_error, store_cause
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError, StepOutageError, StepRetryableError

T = TypeVar("T")

FIRST_PAUSE_SECONDS: Final = 2.0
MOST_PAUSE_SECONDS: Final = 600.0
"""Before work is done again that failed although its service seemed to be back."""
LOOK_SECONDS: Final = 30.0
"""The longest time between two looks whether the service is back."""
SAY_SECONDS: Final = 900.0
"""Between two lines of the log that say the same."""
_LOOK_TIMEOUT_SECONDS: Final = 10.0


class Patience:
    """
    Does work again until the services that it needs are there, or the patience with them is over.

    While a service is away only a look at it is taken, every half minute at most: the work itself may be a training
    that asks for GPUs. Its process or pod has ended meanwhile, and holds nothing.

    :param deployment: where the services are, and how long they are waited for
    :param say: writes a line to the task's log
    :param show: puts a sentence where Airflow shows it at the task; None takes it away
    :param waited: seconds that this try has waited before
    """

    def __init__(
        self,
        deployment: Deployment,
        say: Callable[[str], None],
        show: Callable[[str | None], None],
        waited: float = 0.0,
    ) -> None:
        self.deployment = deployment
        self.waited = waited
        """Seconds, of all waits of this try."""
        self._say, self._show = say, show
        self._seconds = deployment.infrastructure_patience.total_seconds()
        self._say_next = 0.0
        self._away = ""

    def with_work(self, work: Callable[[], T]) -> T:
        """
        :param work: done again after each :class:`StepOutageError`; so it must be safe to repeat
        :raises StepOutageError: the work's last one, once the patience is over
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(StepOutageError),
            # The longer it has waited the longer it waits, also where a new process goes on: no count is kept.
            wait=lambda _: min(max(self.waited / 2, FIRST_PAUSE_SECONDS), MOST_PAUSE_SECONDS),
            stop=self._is_over,
            before_sleep=self._begin,
            sleep=self._wait_until_back,
            reraise=True,
        )
        return retrying(work)

    def _is_over(self, _: tenacity.RetryCallState) -> bool:
        return self.waited >= self._seconds

    def _begin(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert isinstance(error, StepOutageError), error
        self._away = error.service
        self._show(f"{error.service}: {error}")
        self._remind(
            f"waiting for {error.service}, up to {duration(self._seconds)} in one try ([mlops] "
            f"infrastructure_patience); no try is used: {error}"
        )

    def _wait_until_back(self, pause: float) -> None:
        begun = time.monotonic()
        left = self._seconds - self.waited
        time.sleep(min(pause, left))
        looking = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda found: not found),
            wait=tenacity.wait_exponential_jitter(initial=FIRST_PAUSE_SECONDS, max=LOOK_SECONDS),
            stop=lambda _: time.monotonic() - begun >= left,
            before_sleep=lambda _: self._remind(f"still waiting for {self._away}"),
            retry_error_callback=lambda _: False,
        )
        is_back = looking(answers, self.deployment, self._away)
        self.waited += time.monotonic() - begun
        self._show(None)
        said = "answers again: going on" if is_back else "is still away: trying a last time"
        self._say(f"{self._away} {said}, after {duration(self.waited)} of waiting in this try")

    def _remind(self, what: str) -> None:
        """The first time, then rarely."""
        if time.monotonic() >= self._say_next:
            self._say(what)
            self._say_next = time.monotonic() + SAY_SECONDS


def answers(deployment: Deployment, service: str) -> bool:
    """Whether a service is there, as far as one cheap request tells."""
    match service:
        case outages.MLFLOW:
            return _mlflow_answers(deployment.tracking_uri)
        case outages.KEY_SERVICE:
            return _key_service_answers(deployment)
        case outages.ANCHOR_BUCKET:
            return _anchor_bucket_answers(deployment)
        case _:
            return _store_answers(deployment)


def _mlflow_answers(tracking_uri: str) -> bool:
    try:
        response = httpx.get(f"{tracking_uri.rstrip('/')}/health", timeout=_LOOK_TIMEOUT_SECONDS)
    except httpx.HTTPError:
        return False
    return classify_status(response.status_code) is not FailureClass.AWAY


def _key_service_answers(deployment: Deployment) -> bool:
    from mlops.signing.keys import KeyServiceAwayError, UnusableKeyError, load_key

    assert deployment.release_key is not None, "it was asked to sign"
    try:
        return bool(load_key(deployment.release_key).public)
    except KeyServiceAwayError:
        return False
    except UnusableKeyError:  # what it answers is the work's to judge
        return True


def _anchor_bucket_answers(deployment: Deployment) -> bool:
    from mlops.signing.aws import AwsAwayError, AwsRefusedError
    from mlops_provider.locked_anchors import LockedAnchors

    assert deployment.anchor_bucket is not None, "it was asked"
    try:
        LockedAnchors(deployment.anchor_bucket).check()
    except AwsAwayError:
        return False
    except AwsRefusedError:  # what it answers is the work's to judge
        return True
    return True


def _store_answers(deployment: Deployment) -> bool:
    import obstore
    from obstore.exceptions import BaseError

    from mlops_provider.connections import store_of

    try:
        obstore.head(store_of(deployment, retry=False), "pipelines")
    except (BaseError, FileNotFoundError) as error:  # what it answers is the work's to judge
        return classify_store_error(error) is not FailureClass.AWAY
    return True


@contextmanager
def store_errors(store: str, doing: str) -> Iterator[None]:
    """
    Raise errors of the store as those of a task.

    :param doing: begins the message, e.g. ``task 'train' cannot read its outcome``
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError) as error:
        said = f"{doing} in the store {store}: {store_cause(error)}"
        match classify_store_error(error):
            case FailureClass.AWAY:
                raise StepOutageError(said, STORE) from error
            case FailureClass.REFUSED:
                raise StepFailedError(said) from error
            case _:
                raise StepRetryableError(said) from error
