"""Events: what controllers and the kubelet tell about objects, the same thing again counted and not repeated."""

from __future__ import annotations

from cluster.objects import Object, name_of, namespace_of, random_suffix, timestamp, uid_of
from cluster.store import Store


class Recorder:
    """Writes events."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, str, str], Object] = {}

    def normal(self, value: Object, reason: str, message: str, component: str, field: str = "") -> None:
        """Tell of the ordinary."""
        self._record(value, "Normal", reason, message, component, field)

    def warning(self, value: Object, reason: str, message: str, component: str, field: str = "") -> None:
        """Tell of trouble."""
        self._record(value, "Warning", reason, message, component, field)

    def _record(self, value: Object, kind: str, reason: str, message: str, component: str, field: str) -> None:
        key = (uid_of(value), reason, message)
        if key in self._known:
            counted = self._store.modify("events", self._known[key], _count)
            if counted is not None:
                self._known[key] = counted
                return
        involved = {
            "kind": value["kind"],
            "apiVersion": value["apiVersion"],
            "name": name_of(value),
            "uid": uid_of(value),
        }
        involved |= {
            "resourceVersion": value["metadata"]["resourceVersion"],
            "namespace": namespace_of(value) or "default",
        }
        if field:
            involved["fieldPath"] = field
        event: Object = {
            "metadata": {"name": f"{name_of(value)}.{random_suffix(16)}", "namespace": involved["namespace"]},
            "involvedObject": involved,
            "reason": reason,
            "message": message,
            "type": kind,
            "count": 1,
            "firstTimestamp": timestamp(),
            "lastTimestamp": timestamp(),
            "source": {"component": component},
            "reportingComponent": component,
            "reportingInstance": "",
        }
        self._known[key] = self._store.create("events", event)


def _count(event: Object) -> None:
    event["count"] += 1
    event["lastTimestamp"] = timestamp()
