"""API objects as parsed JSON, and the few things every part does with them."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
"""An API object: JSON as it travels. One in the store is never changed in place."""

TERMINAL = ("Succeeded", "Failed")
"""The phases a pod never leaves."""


@dataclass(frozen=True)
class Resource:
    """A kind of object and where the API has it."""

    plural: str
    kind: str
    api_version: str = "v1"
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group, empty for the core."""
        return self.api_version.rpartition("/")[0]

    @property
    def qualified(self) -> str:
        """The name in error messages: ``pods``, ``jobs.batch``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


RESOURCES = {
    resource.plural: resource
    for resource in (
        Resource("namespaces", "Namespace", namespaced=False),
        Resource("nodes", "Node", namespaced=False),
        Resource("pods", "Pod"),
        Resource("services", "Service"),
        Resource("secrets", "Secret"),
        Resource("configmaps", "ConfigMap"),
        Resource("events", "Event"),
        Resource("jobs", "Job", "batch/v1"),
    )
}


def name_of(value: Object) -> str:
    """The object's name."""
    return str(value["metadata"]["name"])


def namespace_of(value: Object) -> str:
    """The object's namespace, empty for what has none."""
    return str(value["metadata"].get("namespace", ""))


def uid_of(value: Object) -> str:
    """The object's uid."""
    return str(value["metadata"]["uid"])


def phase_of(pod: Object) -> str:
    """The pod's phase."""
    return str(pod.get("status", {}).get("phase", "Pending"))


def being_deleted(value: Object) -> bool:
    """Whether the object is on its way out."""
    return "deletionTimestamp" in value["metadata"]


def controller_of(value: Object) -> Object | None:
    """The owner reference of the object's controller."""
    owners: list[Object] = value["metadata"].get("ownerReferences", [])
    return next((owner for owner in owners if owner.get("controller")), None)


def copied(value: Object) -> Object:
    """A copy that can be changed."""
    return copy.deepcopy(value)


def timestamp(seconds: float | None = None) -> str:
    """A time as objects hold it, to the second."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    """The POSIX time of a timestamp."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def random_suffix(length: int = 5) -> str:
    """A suffix as ``generateName`` adds: no vowels, nothing that looks alike."""
    return "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=length))


def condition_of(status: Object, kind: str) -> Object | None:
    """The condition of this type."""
    conditions: Iterable[Object] = status.get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == kind), None)


def has_condition(value: Object, kind: str) -> bool:
    """Whether the object's condition of this type is True."""
    condition = condition_of(value.get("status", {}), kind)
    return condition is not None and condition["status"] == "True"


def set_condition(status: Object, kind: str, state: bool, reason: str = "", message: str = "") -> None:
    """Set a condition in place; its time changes only with its state."""
    condition: Object = {"type": kind, "status": "True" if state else "False"}
    old = condition_of(status, kind)
    same = old is not None and old["status"] == condition["status"]
    condition["lastTransitionTime"] = old["lastTransitionTime"] if old is not None and same else timestamp()
    if reason:
        condition["reason"] = reason
    if message:
        condition["message"] = message
    conditions = status.setdefault("conditions", [])
    if old is None:
        conditions.append(condition)
    else:
        conditions[conditions.index(old)] = condition
