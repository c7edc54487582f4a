"""Which errors are worth waiting for, and which are told at once: real clients of servers that answer so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import obstore
import pytest
from busy_server import BusyServer, busy_server

from mlops.contract.outages import FailureClass, classify_store_error
from mlops_provider.committed import open_store
from mlops_provider.exceptions import StepFailedError, StepRetryableError
from mlops_provider.mlflow_rest import AwayError, LoginError, MlflowError, RefusedError
from mlops_provider.patience import store_errors
from mlops_provider.registry import champion_version

NOWHERE = "http://127.0.0.1:9"
REFUSED_BODY = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>No.</Message></Error>'
"""As S3 writes it."""


@pytest.fixture
def server() -> Iterator[BusyServer]:
    with busy_server() as server:
        yield server


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    def use(address: str) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)

    for name, value in {"ALLOW_HTTP": "true", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "REGION": "r"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return use


def verdict() -> FailureClass:
    with pytest.raises(Exception, match="S3 error|credentials|privileges") as caught:
        obstore.put(open_store("s3://bucket/prefix", retry=False), "key", b"data")
    return classify_store_error(caught.value)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *((status, FailureClass.AWAY) for status in (429, 500, 502, 503, 504)),
        *((status, FailureClass.REFUSED) for status in (400, 401, 403)),
        (405, FailureClass.OTHER),
    ],
)
def test_an_overloaded_store_is_away_and_one_that_refuses_is_not(
    server: BusyServer, at: object, status: int, expected: FailureClass
) -> None:
    """Broken: a wrong key would be tried for six hours, or a store's busy minute would use up a retry."""
    server.status = status
    at(server.url)
    assert verdict() is expected


@pytest.mark.parametrize("status", [400, 401, 403])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ExpiredToken", FailureClass.CREDENTIALS),
        ("InvalidToken", FailureClass.CREDENTIALS),
        ("InvalidAccessKeyId", FailureClass.CREDENTIALS),
        ("TokenRefreshRequired", FailureClass.CREDENTIALS),
        ("RequestTimeTooSkewed", FailureClass.CLOCK),
        ("AccessDenied", FailureClass.REFUSED),
        ("SignatureDoesNotMatch", FailureClass.REFUSED),
    ],
)
def test_credentials_and_clocks_that_a_later_try_may_have_better_are_no_refusal(
    server: BusyServer, at: object, status: int, code: str, expected: FailureClass
) -> None:
    """Broken: a token that ran out in mid-step ends the run for good, with the tries that would have a new one left."""
    server.status, server.body = status, REFUSED_BODY.format(code=code).encode()
    at(server.url)
    assert verdict() is expected


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (REFUSED_BODY.format(code="AccessDenied"), ": AccessDenied: No."),
        ('<?xml version="1.0"?><Error><Code>NoSuchBucket</Code></Error>', ": NoSuchBucket"),
        ('{\n "error": {\n  "message": "no &amp; never"\n }\n}', ': { "error": { "message": "no &amp; never" } }'),
        ("<Error><Code>A</Code><Message>" + "x" * 5000 + "</Message></Error>", "x ..."),
    ],
    ids=["S3", "without a message", "JSON", "long"],
)
def test_what_a_store_answered_is_said(server: BusyServer, at: object, body: str, said: str) -> None:
    """Broken: the message ends before the word that tells a missing right from a wrong key."""
    server.status, server.body = 403, body.encode()
    at(server.url)
    with (
        pytest.raises(StepFailedError, match="403 Forbidden") as caught,
        store_errors("s3://bucket", "it cannot be read"),
    ):
        obstore.put(open_store("s3://bucket/prefix", retry=False), "key", b"data")
    (line,) = str(caught.value).splitlines()
    assert line.endswith(said), line
    assert "<" not in line
    assert len(line) < 800


@pytest.mark.parametrize("address", [NOWHERE, "http://no-such-host.invalid:9000"], ids=["no server", "no such name"])
def test_a_store_that_is_not_there_is_away(at: object, address: str) -> None:
    at(address)
    assert verdict() is FailureClass.AWAY


def test_an_address_that_cannot_be_asked_is_no_outage(at: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: whoever forgot AWS_ALLOW_HTTP would wait for six hours."""
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    at(NOWHERE)
    assert verdict() is FailureClass.OTHER


def test_missing_credentials_are_no_outage() -> None:
    """Broken: whoever forgot them would wait for six hours, since clients then ask a cloud's machine for some."""
    said = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1.0s - HTTP error: error"
    assert classify_store_error(RuntimeError(said)) is FailureClass.OTHER


@pytest.mark.parametrize(
    ("status", "expected"),
    [(429, AwayError), (502, AwayError), (503, AwayError), (401, LoginError), (403, LoginError), (500, None)],
)
def test_a_registry_is_judged_by_what_it_answers(
    server: BusyServer, status: int, expected: type[MlflowError] | None
) -> None:
    server.status = status
    with pytest.raises(MlflowError) as caught:
        asyncio.run(champion_version(server.url, "m"))
    assert type(caught.value) is (expected or MlflowError)


def test_a_registry_that_is_not_there_is_away_and_no_address_is_a_mistake() -> None:
    with pytest.raises(AwayError):
        asyncio.run(champion_version(NOWHERE, "m"))
    with pytest.raises(RefusedError, match="address 'localhost:5000' is none"):
        asyncio.run(champion_version("localhost:5000", "m"))


def test_a_task_whose_token_has_expired_is_tried_again(server: BusyServer, at: object) -> None:
    """Broken: the worker's next try has a new token, and is not made."""
    server.status, server.body = 403, REFUSED_BODY.format(code="ExpiredToken").encode()
    at(server.url)
    with pytest.raises(StepRetryableError), store_errors("s3://bucket/prefix", "the test cannot write"):
        obstore.put(open_store("s3://bucket/prefix", retry=False), "key", b"data")
