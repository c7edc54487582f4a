"""What differs between a ref that came from outside and the one that was committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlops.contract.refs import Ref, canonical_json, shorten


@dataclass(frozen=True, kw_only=True, slots=True)
class RefDifference:
    """The first field in which a ref is not the one that was committed at its place."""

    kind: str
    """Class of the ref that has the field."""
    field: str
    """With dots for parts: ``metrics.auc``."""
    given: str
    committed: str
    """Both values, shortened, as they are shown to people."""

    def __str__(self) -> str:
        return f"{self.field} of the {self.kind} is {self.given}, and was committed as {self.committed}"


def difference(given: Ref, committed: Ref) -> RefDifference | None:
    """
    Compare a ref that came from outside with the one that the store has at its place, parents included.

    :return: None where they are equal
    """
    if type(given) is not type(committed):
        names = [type(ref).__name__ for ref in (given, committed)]
        return RefDifference(kind=names[0], field="kind", given=names[0], committed=names[1])
    wires = [{name: value for name, value in ref.to_wire().items() if name != "parent"} for ref in (given, committed)]
    if (found := _first_difference(*wires)) is not None:
        name, *values = found
        shown = [shorten(value) for value in values]
        return RefDifference(kind=type(given).__name__, field=name, given=shown[0], committed=shown[1])
    before, parent = getattr(given, "parent", None), getattr(committed, "parent", None)
    return difference(before, parent) if isinstance(before, Ref) and isinstance(parent, Ref) else None


def distrust(given: Ref, committed: Ref | None, what: str, store: str) -> str | None:
    """
    Say why a ref that came from outside is not believed; None where it is.

    :param committed: what the store has at its place, if anything
    :param what: the ref's role, which begins the sentence: ``the input of evaluate``
    :param store: URI
    """
    key = f"{given.place}/ref.json"
    if committed is None:
        return (
            f"{what} names a {type(given).__name__} at {given.place!r}, but no step committed one there: {store} has "
            f"no {key}. Clear the task that returned it"
        )
    if (found := difference(given, committed)) is None:
        return None
    return (
        f"{what} was changed after its step had returned it: {found} ({key}). Clear the task that returned it, so that "
        "it returns what it committed"
    )


_ABSENT = "absent"


def _first_difference(given: Mapping[str, Any], committed: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    for name in sorted({*given, *committed}):
        values = given.get(name, _ABSENT), committed.get(name, _ABSENT)
        if all(isinstance(value, Mapping) for value in values):
            if (inner := _first_difference(*values)) is not None:
                return f"{name}.{inner[0]}", *inner[1:]
        # By their JSON: 1 and True, or 1 and 1.0, are equal in Python.
        elif canonical_json(values[0]) != canonical_json(values[1]):
            return name, *values
    return None
