"""Anchors in a bucket with Object Lock: what was kept first counts; a bucket that does not lock is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from locked_bucket import make_locked_bucket
from services import s3_server

from mlops.contract.section import SpecError
from mlops.signing.aws import AwsAwayError, AwsRefusedError
from mlops_provider.deployment import Deployment
from mlops_provider.local.ports import free_port
from mlops_provider.locked_anchors import LockedAnchors


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with s3_server() as variables:
        yield variables | {"AWS_DEFAULT_REGION": variables["AWS_REGION"]}


@pytest.fixture
def s3(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    return boto3.client("s3")


@pytest.mark.parametrize("prefix", ["", "/of/production", "/of/production/"])
def test_what_was_kept_first_counts(s3: Any, prefix: str) -> None:
    """Broken: who holds Airflow's credentials could have the bucket know another trail."""
    bucket = f"first{prefix.replace('/', '-')}-x"
    make_locked_bucket(bucket)
    anchors = LockedAnchors(f"s3://{bucket}{prefix}")
    assert anchors.newest("events") is None
    for number in (1, 2, 10):
        anchors.keep("events", number, f"{number}" * 64)
    anchors.keep("events_2", 3, "3" * 64)
    anchors.keep("events", 10, "f" * 64)
    s3.delete_object(Bucket=bucket, Key=f"{prefix.strip('/')}/events/{10:012}.json".lstrip("/"))
    assert anchors.newest("events") == {"number": 10, "sha256": "10" * 64}
    assert anchors.all() == {
        "events": {"number": 10, "sha256": "10" * 64},
        "events_2": {"number": 3, "sha256": "3" * 64},
    }


def test_only_what_is_called_like_an_entry_is_an_anchor(s3: Any) -> None:
    """Broken: whoever holds Airflow's credentials has the bucket forget an entry, and cuts the trail's end off."""
    make_locked_bucket("named")
    anchors, body = LockedAnchors("s3://named/of"), b'{"number": 1, "sha256": "x"}'
    anchors.keep("events", 2, "2" * 64)
    for key in ("zzz.json", "zzz/000000000009.json", "9.json", "0000000000099.json", "000000000009.json.bak"):
        s3.put_object(Bucket="named", Key=f"of/events/{key}", Body=body)
    known = {"number": 2, "sha256": "2" * 64}
    assert (anchors.newest("events"), anchors.all()) == (known, {"events": known})


@pytest.mark.parametrize(
    "body",
    [b'{"number": 1, "sha256": "x"}', b'{"number": 999999999999}', b"[]", b"no JSON", b"\xff"],
    ids=["another number", "no digest", "no object", "no JSON", "no text"],
)
def test_an_anchor_that_does_not_say_what_it_is_called_is_refused(s3: Any, body: bytes) -> None:
    """Broken: one object with a high number has the bucket know an older entry as the newest, or nothing at all."""
    bucket = f"wrong-{len(body)}"
    make_locked_bucket(bucket)
    anchors = LockedAnchors(f"s3://{bucket}")
    anchors.keep("events", 2, "2" * 64)
    s3.put_object(Bucket=bucket, Key="events/999999999999.json", Body=body)
    for ask in (lambda: anchors.newest("events"), anchors.all):
        with pytest.raises(AwsRefusedError, match=f"events/{10**12 - 1}.json in {bucket} is .*, no anchor of entry"):
            ask()


def test_many_versions_are_all_read(s3: Any) -> None:
    """Broken: S3 gives a thousand at once, and the newest entry comes last."""
    make_locked_bucket("many")
    for number in range(1, 1003):
        s3.put_object(Bucket="many", Key=f"events/{number:012}.json", Body=f'{{"number": {number}, "sha256": "x"}}')
    assert LockedAnchors("s3://many").newest("events") == {"number": 1002, "sha256": "x"}


def test_a_bucket_that_locks_nothing_is_refused(s3: Any) -> None:
    s3.create_bucket(Bucket="open")
    make_locked_bucket("forgetful", days=None)
    for bucket in ("open", "forgetful"):
        with pytest.raises(AwsRefusedError, match=f"{bucket} has no Object Lock with a default retention"):
            LockedAnchors(f"s3://{bucket}").keep("events", 1, "1" * 64)
    with pytest.raises(AwsRefusedError, match=r"anchor_bucket s3://nowhere cannot be used: .*NoSuchBucket"):
        LockedAnchors("s3://nowhere").newest("events")


def test_a_server_that_is_not_there_may_come_back(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(AwsAwayError, match="its service does not answer"):
        LockedAnchors("s3://first").check()


def test_an_address_that_is_no_bucket_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__MLOPS__ANCHOR_BUCKET", "/var/anchors")
    with pytest.raises(SpecError, match="anchor_bucket is '/var/anchors'; it must be s3://BUCKET"):
        Deployment.load()
