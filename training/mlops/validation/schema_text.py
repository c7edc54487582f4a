"""Change a ``schema.pbtxt`` where its messages differ; comments, order and layout of the rest stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from tensorflow_metadata.proto.v0 import schema_pb2

_TOKEN: Final = re.compile(
    r"""\#[^\n]* | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | [{}<>\[\]:;,] | [^\s{}<>\[\]:;,\#"']+""", re.VERBOSE
)
_OPENING, _CLOSING = "{<[", "}>]"


@dataclass(frozen=True, slots=True)
class _Field:
    """A field in the text: from its name to the end of its value."""

    name: str
    start: int
    end: int
    body: tuple[int, int] | None
    """Start and end of the text between the braces of a message; None if the value is not a message."""


_Edit = tuple[int, int, str]
"""An edit: start and end of the replaced text, and the new text."""


def revise_text(text: str, before: schema_pb2.Schema, after: schema_pb2.Schema) -> str:
    """
    Make the text say ``after``, with as few changes as possible.

    :param before: the schema that the text describes; features and string domains of the same name are the same
    """
    fields = list(_fields(text, 0, len(text)))
    edits: list[_Edit] = []
    for name in ("feature", "string_domain"):
        spans = [field for field in fields if field.name == name]
        old, new = getattr(before, name), {message.name: message for message in getattr(after, name)}
        for field, message in zip(spans, old, strict=False):
            if message.name not in new:
                edits.append(_deletion(text, field))
            else:
                edits += _message_edits(text, field, message, new[message.name])
        added = [message for message in new.values() if message.name not in {message.name for message in old}]
        kept = [field for field, message in zip(spans, old, strict=False) if message.name in new]
        end = kept[-1].end if kept else len(text.rstrip())
        descriptor = after.DESCRIPTOR.fields_by_name[name]
        edits += [(end, end, f"\n{_only(after, descriptor, message, one_line=name == 'feature')}") for message in added]
    # From the end, so that positions stay; of insertions at one place the first stays the first.
    edits.sort(key=lambda edit: edit[:2])
    for start, end, replacement in reversed(edits):
        text = text[:start] + replacement + text[end:]
    # The format knows ways to write lists that are not followed here.
    revised = text_format.Parse(text, schema_pb2.Schema())
    return text if revised == after else str(text_format.MessageToString(after, as_utf8=True))


def _fields(text: str, start: int, end: int) -> Iterator[_Field]:
    """Iterate over the fields of one message, in the order of the text; not those of the messages in it."""
    tokens = [match for match in _TOKEN.finditer(text, start, end) if match[0][0] != "#"]
    place = 0
    while place < len(tokens):
        name = tokens[place]
        place += 1
        if name[0] in ";,":
            continue
        if tokens[place][0] == ":":
            place += 1
        first = last = tokens[place]
        if first[0] in _OPENING:
            depth = 0
            while True:
                last = tokens[place]
                depth += (last[0] in _OPENING) - (last[0] in _CLOSING)
                place += 1
                if not depth:
                    break
        else:
            place += 1
            # Strings side by side are one.
            while first[0][0] in "\"'" and place < len(tokens) and tokens[place][0][0] in "\"'":
                last = tokens[place]
                place += 1
        body = (first.end(), last.start()) if first[0] in "{<" else None
        yield _Field(name[0], name.start(), last.end(), body)


def _message_edits(text: str, field: _Field, before: Message, after: Message) -> list[_Edit]:
    if before == after or field.body is None:
        return []
    inside = list(_fields(text, *field.body))
    staying = [found for found in inside if _value(after, before.DESCRIPTOR.fields_by_name[found.name])]
    edits: list[_Edit] = []
    for descriptor in before.DESCRIPTOR.fields:
        old, new = _value(before, descriptor), _value(after, descriptor)
        spans = [found for found in inside if found.name == descriptor.name]
        if old == new:
            continue
        if old and new and descriptor.message_type and not descriptor.is_repeated and len(spans) == 1:
            edits += _message_edits(text, spans[0], old[0], new[0])
        elif spans and len(spans) == len(old) and new[: len(old)] == old:
            more = "".join(_gap(text, spans[-1]) + _only(after, descriptor, value) for value in new[len(old) :])
            edits.append((spans[-1].end, spans[-1].end, more))
        elif spans and new:
            text_of_all = _gap(text, spans[0]).join(_only(after, descriptor, value) for value in new)
            edits.append((spans[0].start, spans[0].end, text_of_all))
            edits += [_deletion(text, span) for span in spans[1:]]
        elif spans:
            edits += [_deletion(text, span) for span in spans]
        else:
            end, gap = (staying[-1].end, _gap(text, staying[-1])) if staying else (field.body[0], " ")
            edits.append((end, end, "".join(gap + _only(after, descriptor, value) for value in new)))
    return edits


def _value(message: Message, descriptor: FieldDescriptor) -> list[Any]:
    """Return the values of a field: none, one, or those of a repeated one."""
    if descriptor.is_repeated:
        return list(getattr(message, descriptor.name))
    return [getattr(message, descriptor.name)] if message.HasField(descriptor.name) else []


def _only(message: Message, descriptor: FieldDescriptor, value: Any, *, one_line: bool = True) -> str:
    """Return the field with that value, as text."""
    alone = type(message)()
    if descriptor.is_repeated:
        getattr(alone, descriptor.name).append(value)
    elif descriptor.message_type:
        getattr(alone, descriptor.name).CopyFrom(value)
    else:
        setattr(alone, descriptor.name, value)
    return str(text_format.MessageToString(alone, as_one_line=one_line, as_utf8=True)).rstrip()


def _gap(text: str, field: _Field) -> str:
    """Return the space before a field: a blank, or a line break and an indent."""
    return text[len(text[: field.start].rstrip()) : field.start] or " "


def _deletion(text: str, field: _Field) -> _Edit:
    """Return the edit that deletes a field; if it stands alone on its lines, the lines go with it."""
    start = len(text[: field.start].rstrip(" \t"))
    end = len(text) - len(text[field.end :].lstrip(" \t"))
    if (start == 0 or text[start - 1] == "\n") and text[end : end + 1] == "\n":
        return start, end + 1, ""
    return start, field.end, ""
