"""Deleting: grace, finalizers, preconditions, and what becomes of the dependents."""

from __future__ import annotations

import time

from cluster import errors
from cluster.objects import (
    RESOURCES,
    TERMINAL,
    Object,
    Resource,
    being_deleted,
    copied,
    name_of,
    namespace_of,
    phase_of,
    timestamp,
    uid_of,
)
from cluster.store import Store

_POLICIES = ("Foreground", "Background", "Orphan")
_FOREGROUND = "foregroundDeletion"


def delete(store: Store, resource: Resource, value: Object, options: Object) -> Object:
    """
    Delete an object as DeleteOptions say.

    :return: the object as it is afterwards, or as it was last
    :raises ApiError: it is not the one that is meant, or the options make no sense
    """
    for name, given in options.get("preconditions", {}).items():
        actual = value["metadata"][name]
        if given != actual:
            label = "UID" if name == "uid" else "ResourceVersion"
            why = f"Precondition failed: {label} in precondition: {given}, {label} in object meta: {actual}"
            raise errors.conflict(resource, name_of(value), why)
    policy = _policy(resource, options)
    if policy == "Orphan":
        for plural, dependent in dependents_of(store, value):
            store.modify(plural, dependent, lambda new: _disown(new, uid_of(value)))
    finalizers = list(value["metadata"].get("finalizers", []))
    blocked = [each for _, each in dependents_of(store, value) if _blocks(each, uid_of(value))]
    if policy == "Foreground" and blocked and _FOREGROUND not in finalizers:
        finalizers.append(_FOREGROUND)
    grace = _grace(resource, value, options)
    if not finalizers and grace == 0 and resource.kind != "Namespace":
        return store.remove(resource.plural, value)
    new = copied(value)
    if finalizers:
        new["metadata"]["finalizers"] = finalizers
    if not being_deleted(value) or grace < new["metadata"].get("deletionGracePeriodSeconds", 0):
        new["metadata"]["deletionTimestamp"] = timestamp(time.time() + grace)
        new["metadata"]["deletionGracePeriodSeconds"] = grace
    return store.replace(resource.plural, new)


def finish(store: Store, resource: Resource, value: Object) -> None:
    """Remove an object that nothing holds back any longer."""
    if being_deleted(value) and not value["metadata"].get("finalizers"):
        store.remove(resource.plural, value)


def dependents_of(store: Store, owner: Object) -> list[tuple[str, Object]]:
    """The objects that name it as an owner, each with its plural."""
    uid = uid_of(owner)
    return [
        (plural, value)
        for plural in RESOURCES
        for value in store.all(plural, namespace_of(owner))
        if any(reference["uid"] == uid for reference in value["metadata"].get("ownerReferences", []))
    ]


def release(store: Store, resource: Resource, value: Object) -> None:
    """Let a foreground deletion go on, once no dependent blocks it."""
    if not any(_blocks(each, uid_of(value)) for _, each in dependents_of(store, value)):
        new = copied(value)
        new["metadata"]["finalizers"].remove(_FOREGROUND)
        finish(store, resource, store.replace(resource.plural, new))


def in_foreground(value: Object) -> bool:
    """Whether the object waits for its dependents to go."""
    return being_deleted(value) and _FOREGROUND in value["metadata"].get("finalizers", [])


def _policy(resource: Resource, options: Object) -> str:
    if "orphanDependents" in options:
        if "propagationPolicy" in options:
            text = "Invalid value: orphanDependents and deletionPropagation cannot be both set"
            raise errors.invalid(resource, "", [("propagationPolicy", text)])
        return "Orphan" if options["orphanDependents"] else "Background"
    # As batch/v1 has it for the sake of old clients: a Job's pods stay unless one says otherwise.
    policy = str(options.get("propagationPolicy", "Orphan" if resource.kind == "Job" else "Background"))
    if policy not in _POLICIES:
        text = f'Unsupported value: "{policy}": supported values: "Foreground", "Background", "Orphan"'
        raise errors.invalid(resource, "", [("propagationPolicy", text)])
    return policy


def _grace(resource: Resource, value: Object, options: Object) -> int:
    if resource.kind != "Pod":
        return 0
    if "nodeName" not in value["spec"] or phase_of(value) in TERMINAL:
        return 0
    grace = int(options.get("gracePeriodSeconds", value["spec"]["terminationGracePeriodSeconds"]))
    if grace < 0:
        raise errors.invalid(resource, name_of(value), [("gracePeriodSeconds", "Invalid value: must not be negative")])
    return grace


def _blocks(value: Object, uid: str) -> bool:
    owners = value["metadata"].get("ownerReferences", [])
    return any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in owners)


def _disown(value: Object, uid: str) -> None:
    kept = [owner for owner in value["metadata"]["ownerReferences"] if owner["uid"] != uid]
    value["metadata"]["ownerReferences"] = kept
