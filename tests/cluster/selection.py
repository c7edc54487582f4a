"""Label and field selectors, in the query string and in objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from cluster import errors
from cluster.objects import Object

Test = Callable[[Object], bool]

_TERM = re.compile(
    r"\s*(?:(?P<set>[\w./-]+)\s+(?P<how>in|notin)\s*\((?P<values>[^()]*)\)"
    r"|(?P<absent>!\s*)?(?P<key>[\w./-]+)\s*(?:(?P<sign>==|=|!=)\s*(?P<value>[\w.-]*))?)\s*(?:,|$)"
)
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_FIELDS = {
    "pods": ("status.phase", "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "status.podIP"),
    "events": (
        *(f"involvedObject.{name}" for name in _INVOLVED),
        *("reason", "type", "source", "reportingComponent"),
    ),
    "secrets": ("type",),
    "jobs": ("status.successful",),
    "nodes": ("spec.unschedulable",),
}


def by_labels(text: str) -> Test:
    """
    A label selector: ``a=b,c!=d,e in (f,g),h,!i``.

    :raises ApiError: it cannot be read
    """
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    position = 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None or match.end() == position:
            raise errors.bad_request(f"unable to parse requirement: found '{text[position:]}'")
        tests.append(_label_test(match))
        position = match.end()
    return lambda value: all(test(value["metadata"].get("labels", {})) for test in tests)


def by_fields(text: str, plural: str) -> Test:
    """
    A field selector: ``metadata.name=a,status.phase!=Running``.

    :raises ApiError: the resource cannot be selected by that field
    """
    tests: list[tuple[str, bool, str]] = []
    for term in filter(None, text.split(",")):
        match = re.fullmatch(r"([\w.]+)(==|=|!=)(.*)", term)
        if match is None:
            raise errors.bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        field, sign, value = match.groups()
        if field not in ("metadata.name", "metadata.namespace", *_FIELDS.get(plural, ())):
            raise errors.bad_request(f"field label not supported: {field}")
        tests.append((field, sign != "!=", value))
    return lambda value: all((_field(value, field) == wanted) == equal for field, equal, wanted in tests)


def matches_labels(wanted: Mapping[str, str], value: Object) -> bool:
    """Whether an object has all these labels."""
    labels = value["metadata"].get("labels", {})
    return all(labels.get(key) == text for key, text in wanted.items())


def matches_expression(labels: Mapping[str, str], expression: Object) -> bool:
    """One of a node selector term's ``matchExpressions``."""
    has, value = expression["key"] in labels, labels.get(expression["key"])
    values: list[str] = expression.get("values", [])
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return has
        case "DoesNotExist":
            return not has
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case _:
            return value is not None and int(value) < int(values[0])


def _label_test(match: re.Match[str]) -> Callable[[Mapping[str, str]], bool]:
    if key := match["set"]:
        values = {value.strip() for value in match["values"].split(",")}
        inside = match["how"] == "in"
        return lambda labels: (labels.get(key) in values) == inside
    key, value, sign = match["key"], match["value"], match["sign"]
    if match["absent"]:
        if sign:
            raise errors.bad_request(f"unable to parse requirement: '{match[0]}'")
        return lambda labels: key not in labels
    if not sign:
        return lambda labels: key in labels
    return lambda labels: (labels.get(key) == value) == (sign != "!=")


def _field(value: Object, path: str) -> str:
    found: Any = value
    for part in path.split("."):
        if path == "source" and part == "source":
            return str(value.get("source", {}).get("component", ""))
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, bool):
        return str(found).lower()
    return "" if found is None else str(found)
