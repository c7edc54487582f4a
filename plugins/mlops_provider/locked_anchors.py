"""
Anchors in a bucket of S3 with Object Lock, where not even Airflow's administrators can take one back.

Each is an object of its own, ``<prefix>/<model>/<number>.json``. A bucket with Object Lock keeps all versions of an
object until their retention is over: the oldest one counts, whatever was written under that name, or deleted, after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from mlops.contract.refs import shorten
from mlops.signing.aws import AwsRefusedError, aws_errors


class LockedAnchors:
    """
    Credentials and region are those of boto3.

    :param uri: ``s3://<bucket>`` or ``s3://<bucket>/<prefix>``
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    def place(self, model: str) -> str:
        return f"{self._uri.rstrip('/')}/{model}"

    def newest(self, model: str) -> Mapping[str, Any] | None:
        """
        Number and SHA-256 of the newest entry of a model; None where none is known.

        :raises AwsAwayError, AwsRefusedError: where the bucket cannot be read
        """
        return self._newest(f"{self._prefix}{model}/").get(model)

    def all(self) -> Mapping[str, Mapping[str, Any]]:
        """The newest of each model."""
        return self._newest(self._prefix)

    def check(self) -> None:
        """:raises AwsAwayError, AwsRefusedError: where what is written to the bucket is not locked"""
        with self._errors():
            self._check_locked()

    def keep(self, model: str, number: int, sha256: str) -> None:
        """
        Keep one for ever, or as long as the bucket does; one that is there under its number stays.

        :raises AwsAwayError, AwsRefusedError: where it cannot be kept
        """
        with self._errors():
            self._check_locked()
            self._s3.put_object(
                Bucket=self._bucket,
                Key=f"{self._prefix}{model}/{number:012}.json",
                Body=json.dumps({"number": number, "sha256": sha256}).encode(),
                ChecksumAlgorithm="SHA256",  # S3 wants one where it is to lock
            )

    def _newest(self, prefix: str) -> dict[str, dict[str, Any]]:
        with self._errors():
            # S3 lists by key, and of a key the newest version first: what comes last for a model is what counts.
            counts: dict[str, tuple[str, int, str]] = {}
            # Of other names none is an anchor: whoever may write the bucket chooses them, so that they come last.
            name = re.compile(rf"{re.escape(self._prefix)}([^/]+)/(\d{{12}})\.json", re.ASCII)
            for page in self._s3.get_paginator("list_object_versions").paginate(Bucket=self._bucket, Prefix=prefix):
                for version in page.get("Versions", []):
                    if (match := name.fullmatch(version["Key"])) is not None:
                        counts[match[1]] = version["Key"], int(match[2]), version["VersionId"]
            return {model: self._read(*found) for model, found in counts.items()}

    def _read(self, key: str, number: int, version: str) -> dict[str, Any]:
        found = self._s3.get_object(Bucket=self._bucket, Key=key, VersionId=version)
        data = found["Body"].read()
        try:
            anchor = json.loads(data)
            if anchor["number"] != number:
                raise ValueError("it has another number")
            return {"number": number, "sha256": str(anchor["sha256"])}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise AwsRefusedError(
                f"[mlops] anchor_bucket: {key} in {self._bucket} is {shorten(data)}, no anchor of entry {number}: "
                "somebody else wrote it, and nobody can delete it while the bucket locks it. Look who may write there, "
                "and name another bucket or prefix"
            ) from error

    def _check_locked(self) -> None:
        from botocore.exceptions import ClientError

        try:
            found = self._s3.get_object_lock_configuration(Bucket=self._bucket)["ObjectLockConfiguration"]
        except ClientError as error:
            if error.response["Error"]["Code"] != "ObjectLockConfigurationNotFoundError":
                raise
            found = {}
        if "DefaultRetention" not in found.get("Rule", {}):
            raise AwsRefusedError(
                f"[mlops] anchor_bucket: {self._bucket} has no Object Lock with a default retention, so that anchors "
                "could be deleted there: make a bucket with Object Lock, and set its default retention"
            )

    @cached_property
    def _s3(self) -> Any:
        import boto3

        return boto3.client("s3")

    def _errors(self) -> Any:
        return aws_errors(f"[mlops] anchor_bucket {self._uri}")
