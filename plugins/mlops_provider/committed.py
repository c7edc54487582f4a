"""Read what steps committed, from the airflow runtime: for sensors, and for the pages that people open."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import obstore
from obstore.store import LocalStore, ObjectStore, from_url

from mlops_provider.refs import DatasetRef, Ref, ref_from_wire
from mlops_provider.step import deprecation_key


def open_store(uri: str) -> ObjectStore:
    """:param uri: ``file:///folder`` or ``s3://bucket/prefix``"""
    # The path as it is, like the steps: a URL's % # and ? would name another folder than theirs.
    return LocalStore(uri.removeprefix("file://"), mkdir=True) if uri.startswith("file://") else from_url(uri)


async def read_committed(store: ObjectStore, place: str) -> Ref | None:
    """What a step committed."""
    wire = await read_json(store, f"{place}/ref.json")
    return None if wire is None else ref_from_wire(wire)


async def read_json(store: ObjectStore, key: str) -> Any:
    """:return: None where there is no such object"""
    try:
        response = await obstore.get_async(store, key)
    except FileNotFoundError:
        return None
    return json.loads(bytes(await response.bytes_async()))


async def find_snapshot(store: ObjectStore, pipeline: str, interval_end: str | None) -> DatasetRef | None:
    """
    The committed snapshot of a dataset; never a deprecated one.

    :param interval_end: ISO 8601; None takes the one with the latest interval
    """
    found: list[tuple[datetime, datetime, str]] = []
    async for page in obstore.list(store, f"pipelines/{pipeline}/ingest"):
        for entry in page:
            # .../ingest/20130208T050000Z-<digest>/ref.json: its presence is the commit.
            *_, run_key, name = entry["path"].split("/")
            if name == "ref.json":
                end = datetime.fromisoformat(run_key.rpartition("-")[0])
                found.append((end, entry["last_modified"], entry["path"]))
    if interval_end is not None:
        wanted = datetime.fromisoformat(interval_end)
        found = [item for item in found if item[0] == wanted]
    # Of several snapshots of one interval (other settings, other code) the one committed last.
    for *_, path in sorted(found, reverse=True):
        ref = DatasetRef.from_wire(await read_json(store, path))
        if not await _exists(store, deprecation_key(ref.name, ref.version)):
            return ref
    return None


async def _exists(store: ObjectStore, key: str) -> bool:
    try:
        await obstore.head_async(store, key)
    except FileNotFoundError:
        return False
    return True
