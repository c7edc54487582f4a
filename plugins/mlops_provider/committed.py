"""Read what steps committed, from the airflow runtime: for sensors, and for the pages that people open."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from mlops.contract.refs import MANIFEST, Artifact, DatasetRef, Ref, named_in, ref_from_wire
from mlops.contract.step import deprecation_key

_S3_KEYS: Final = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "token",
}
"""Variables with credentials, and the client's own names of them."""
_S3_SETTINGS: Final = {"AWS_ENDPOINT_URL": "endpoint", "AWS_REGION": "region"}


DAMAGED: Final = (ValueError, TypeError, KeyError, AttributeError)
"""What reading a ref raises where what lies there is none."""


def open_store(uri: str, credentials: Mapping[str, str] = MappingProxyType({}), *, retry: bool = True) -> ObjectStore:
    """
    :param uri: ``file:///folder`` or ``s3://bucket/prefix``
    :param credentials: by their environment variables; empty: those of this process
    :param retry: whether a request to a store that is away or overloaded is tried again, for a minute or so
    """
    # The path as it is, like the steps: a URL's % # and ? would name another folder than theirs.
    if uri.startswith("file://"):
        return LocalStore(uri.removeprefix("file://"), mkdir=True)
    options: dict[str, Any] = {} if retry else {"retry_config": {"max_retries": 0}}
    if credentials:
        settings = {ours: credentials[name] for name, ours in _S3_SETTINGS.items() if name in credentials}
        # Not as settings: what this process has in its environment, a session's token say, would be added to them.
        options |= {"config": settings, "credential_provider": lambda: _s3_keys(credentials)}
        if "AWS_ALLOW_HTTP" in credentials:
            options["client_options"] = {"allow_http": True}
    return from_url(uri, **options)


def _s3_keys(credentials: Mapping[str, str]) -> Any:
    return {ours: credentials.get(name) for name, ours in _S3_KEYS.items()} | {"expires_at": None}


async def read_committed(store: ObjectStore, place: str) -> Ref | None:
    """What a step committed."""
    wire = await read_json(store, f"{place}/ref.json")
    return None if wire is None else ref_from_wire(wire)


async def read_json(store: ObjectStore, key: str) -> Any:
    """:return: None where there is no such object"""
    data = await read_bytes(store, key)
    return None if data is None else json.loads(data)


async def read_bytes(store: ObjectStore, key: str) -> bytes | None:
    """:return: None where there is no such object"""
    try:
        response = await obstore.get_async(store, key)
    except FileNotFoundError:
        return None
    return bytes(await response.bytes_async())


async def read_artifact(store: ObjectStore, artifact: Artifact) -> bytes | None:
    """:return: None where it is gone, or is not what was written"""
    data = await read_bytes(store, artifact.key)
    return data if data is not None and hashlib.sha256(data).hexdigest() == artifact.sha256 else None


async def write_new(store: ObjectStore, key: str, data: bytes) -> bool:
    """
    Write an object, once; False where there is one of that key with other bytes.

    Where only the answer was lost, by a client's own second try or a cut connection, the object is read back. Two
    writers of equal bytes are both told True.
    """
    try:
        await obstore.put_async(store, key, data, mode="create")
    except AlreadyExistsError:
        return await read_bytes(store, key) == data
    except (BaseError, OSError):
        if (found := await read_bytes(store, key)) is None:
            raise
        return found == data
    return True


async def lacking(store: ObjectStore, ref: Ref) -> list[str]:
    """
    Keys of what a ref, and its manifest, name and the store does not have, or has with another size.

    One HEAD for each object, 16 at a time, and a GET where there is a manifest.
    """
    turns = asyncio.Semaphore(16)

    async def is_there(artifact: Artifact) -> bool:
        async with turns:
            try:
                return (await obstore.head_async(store, artifact.key))["size"] == artifact.num_bytes
            except FileNotFoundError:
                return False

    named = list(ref.artifacts.values())
    manifest = ref.artifacts.get(MANIFEST)
    if manifest and (data := await read_artifact(store, manifest)) is not None:
        named += named_in(data)
    there = await asyncio.gather(*map(is_there, named))
    return [artifact.key for artifact, found in zip(named, there, strict=True) if not found]


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Committed:
    """Where something is committed; the later one is of the later interval, and of that the one committed later."""

    end: datetime
    """Of the data interval."""
    at: datetime
    """When it was committed."""
    place: str


async def committed_below(store: ObjectStore, folder: str) -> list[Committed]:
    """
    Find all that a step has committed.

    :param folder: of the step, in that of a pipeline or an experiment
    """
    found = []
    async for page in obstore.list(store, folder):
        for entry in page:
            # .../ingest/20130208T050000Z-<digest>/ref.json: its presence is the commit.
            place, _, name = entry["path"].rpartition("/")
            if name == "ref.json" and (end := _end_of(place)) is not None:
                found.append(Committed(end=end, at=entry["last_modified"], place=place))
    return found


def _end_of(place: str) -> datetime | None:
    """End of the data interval of what is committed there; None where it is no place of a step."""
    try:
        end = datetime.fromisoformat(place.rpartition("/")[2].rpartition("-")[0])
    except ValueError:
        return None
    return end if end.tzinfo is not None else None


def folders(store: ObjectStore, folder: str) -> list[str]:
    """Return the folders directly below a folder, sorted."""
    return sorted(obstore.list_with_delimiter(store, folder)["common_prefixes"])


async def find_snapshot(store: ObjectStore, pipeline: str, interval_end: str | None) -> DatasetRef | None:
    """
    The committed snapshot of a dataset; never a deprecated one.

    :param interval_end: ISO 8601; None takes the one with the latest interval
    """
    found = await committed_below(store, f"pipelines/{pipeline}/ingest")
    if interval_end is not None:
        wanted = datetime.fromisoformat(interval_end)
        found = [each for each in found if each.end == wanted]
    # Of several snapshots of one interval (other settings, other code) the one committed last.
    for each in sorted(found, reverse=True):
        ref = DatasetRef.from_wire(await read_json(store, f"{each.place}/ref.json"))
        if not await _exists(store, deprecation_key(ref.name, ref.version)):
            return ref
    return None


async def _exists(store: ObjectStore, key: str) -> bool:
    try:
        await obstore.head_async(store, key)
    except FileNotFoundError:
        return False
    return True
