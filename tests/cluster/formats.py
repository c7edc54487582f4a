"""The formats of names, labels and the like, and the words they are refused with."""

from __future__ import annotations

import re
from collections.abc import Mapping

Mistakes = list[tuple[str, str]]
"""Fields and what is wrong with each."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_SERVICE_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_KEY_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


def bad(value: object, why: str) -> str:
    """How an invalid value is told."""
    return f'Invalid value: "{value}": {why}'


def label_name(field: str, name: str) -> Mistakes:
    """A DNS-1123 label: containers, volumes, hostnames, namespaces."""
    return _limited(field, name, 63) or ([] if _LABEL.fullmatch(name) else [(field, bad(name, _LABEL_TEXT))])


def service_name(field: str, name: str) -> Mistakes:
    """A DNS-1035 label: Services."""
    return _limited(field, name, 63) or ([] if _SERVICE.fullmatch(name) else [(field, bad(name, _SERVICE_TEXT))])


def subdomain_name(field: str, name: str) -> Mistakes:
    """A DNS-1123 subdomain: most objects."""
    return _limited(field, name, 253) or ([] if _SUBDOMAIN.fullmatch(name) else [(field, bad(name, _SUBDOMAIN_TEXT))])


def labels(field: str, values: Mapping[str, str]) -> Mistakes:
    """The keys and values of labels or of a selector."""
    mistakes = keys(field, values)
    for value in values.values():
        if len(value) > 63:
            mistakes.append((field, bad(value, "must be no more than 63 bytes")))
        elif value and not _QUALIFIED.fullmatch(value):
            mistakes.append((field, bad(value, _VALUE_TEXT)))
    return mistakes


def annotation_keys(field: str, values: Mapping[str, str]) -> Mistakes:
    """The keys of annotations, and their size."""
    size = sum(len(key.encode()) + len(value.encode()) for key, value in values.items())
    too_long = [(field, f"Too long: may not be more than {256 << 10} bytes")] if size > 256 << 10 else []
    return keys(field, values) + too_long


def keys(field: str, values: Mapping[str, str]) -> Mistakes:
    """Qualified names: an optional DNS prefix, a slash, a name of at most 63 characters."""
    mistakes: Mistakes = []
    for key in values:
        prefix, slash, name = key.rpartition("/")
        if slash and (not _SUBDOMAIN.fullmatch(prefix) or len(prefix) > 253):
            mistakes.append((field, bad(key, f"prefix part {_SUBDOMAIN_TEXT}")))
        if len(name) > 63:
            mistakes.append((field, bad(key, "name part must be no more than 63 bytes")))
        elif not _QUALIFIED.fullmatch(name):
            mistakes.append((field, bad(key, _KEY_TEXT)))
    return mistakes


def _limited(field: str, name: str, most: int) -> Mistakes:
    if not name:
        return [(field, "Required value")]
    return [(field, bad(name, f"must be no more than {most} bytes"))] if len(name) > most else []
