"""
Deprecated snapshots: kept and readable for ever, but no new work starts from them.

The mark is an object beside the dataset's snapshots, written once and never changed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from mlops.contract.refs import DatasetRef, Ref
from mlops.contract.step import BadDataError, deprecation_key
from mlops.store import Store
from mlops.store_errors import DamagedObjectError


@dataclass(frozen=True, kw_only=True, slots=True)
class Deprecation:
    """The reason why a snapshot must not be used any more."""

    reason: str
    by: str
    at: str
    """Time of the deprecation, ISO 8601, UTC."""


def deprecate(store: Store, dataset: str, version: str, *, reason: str, by: str) -> Deprecation:
    """
    Mark a snapshot, wherever it was committed. Of several marks the first stays.

    :return: the mark that holds: an earlier one where there was one
    """
    mark = Deprecation(reason=reason, by=by, at=datetime.now(UTC).isoformat(timespec="seconds"))
    if store.put_new(deprecation_key(dataset, version), json.dumps(asdict(mark), indent=1).encode()):
        return mark
    earlier = find_deprecation(store, dataset, version)
    assert earlier is not None, "a mark never disappears"
    return earlier


def find_deprecation(store: Store, dataset: str, version: str) -> Deprecation | None:
    """
    Return the mark of a snapshot; None if it is not deprecated.

    :raises DamagedObjectError: where the mark is there and cannot be read
    """
    key = deprecation_key(dataset, version)
    try:
        return Deprecation(**json.loads(store.get(key)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise DamagedObjectError(
            f"{key} in {store.uri} is damaged ({error}); delete it, and deprecate the snapshot again"
        ) from error


def refuse_deprecated(store: Store, ref: Ref) -> None:
    """
    Refuse work on a deprecated snapshot.

    :raises BadDataError: where the ref descends from a deprecated snapshot
    """
    dataset = ref.ancestor(DatasetRef)
    mark = find_deprecation(store, dataset.name, dataset.version)
    if mark is not None:
        raise BadDataError(
            f"the snapshot {dataset.name}@{dataset.version[:12]} is deprecated, since {mark.at[:10]} by {mark.by}: "
            f"{mark.reason}. Nothing new is made from it. To ingest this night anew, change a setting of ingest or its "
            "transform, and run the night again"
        )
