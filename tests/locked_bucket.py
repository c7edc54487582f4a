"""A bucket with Object Lock, at the S3 server that the environment names."""

from __future__ import annotations

import boto3


def make_locked_bucket(name: str, *, days: int | None = 1) -> None:
    """:param days: of the default retention; None: there is none"""
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    if days is not None:
        rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": days}}
        lock = {"ObjectLockEnabled": "Enabled", "Rule": rule}
        s3.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=lock)
