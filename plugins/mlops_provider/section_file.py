"""Read a section from a YAML file; every mistake is reported with file, line, column, value and fix."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic

import yaml
from pydantic import ValidationError

from mlops.contract.section import Section, SectionT, SpecError, describe, keys_of

KeyPath = tuple[str, ...]
"""Keys and indexes, from the top of the file."""
Mark = tuple[int, int]
"""Line and column, from 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SectionFile(Generic[SectionT]):
    """A section that a file holds, and where its settings stand."""

    section: SectionT
    places: Places

    def error(self, complaints: Iterable[tuple[KeyPath, str]]) -> SpecError | None:
        """One line for each complaint about the setting at a path; None where there is none."""
        lines = [f"{self.places.of(path, 'value')}: {complaint}" for path, complaint in complaints]
        return SpecError("\n".join(lines)) if lines else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where settings stand, for messages."""

    file: str
    """Its name."""
    marks: Mapping[KeyPath, tuple[Mark, Mark]]
    """Where in the file each key and its value begin."""
    changes: Mapping[KeyPath, str]
    """Those that were given instead."""
    option: str
    """By which they were given."""
    fields: Mapping[KeyPath, str]
    """Of a request, those by which some were given instead."""

    def of(self, path: KeyPath, problem: str) -> str:
        """
        Where a setting stands: ``file:line:column``, or the option that gave it.

        :param problem: pydantic's type of it
        """
        for length in range(len(path), 0, -1):
            if path[:length] in self.changes:
                return self.given(path[:length])
        # What is wrong about several settings together is wrong by those that are not the file's.
        if below := [keys for keys in self.changes if keys[: len(path)] == path]:
            return ", ".join(map(self.given, below))
        line, column = _position(path, problem, self.marks)
        return f"{self.file}:{line}:{column}"

    def given(self, keys: KeyPath) -> str:
        """The value that was given in place of the file's, as it was given."""
        name = self.fields.get(keys) or f"{self.option} {'.'.join(keys)}"
        return f"{name}={self.changes[keys]}"


def read_section(
    kind: type[SectionT],
    path: Path,
    what: str,
    changes: Mapping[KeyPath, str] = MappingProxyType({}),
    option: str = "--set",
) -> SectionFile[SectionT]:
    """
    Read a section from its file; for the parameters see :func:`parse_section`.

    :raises SpecError: one ``file:line:column: message`` line for each mistake
    """
    return parse_section(kind, _text(path), path.name, what, changes, option)


def parse_section(
    kind: type[SectionT],
    text: str,
    file: str,
    what: str,
    changes: Mapping[KeyPath, str] = MappingProxyType({}),
    option: str = "--set",
    fields: Mapping[KeyPath, str] = MappingProxyType({}),
) -> SectionFile[SectionT]:
    """
    :param file: name of the file that holds the text
    :param what: it holds, as ``a pipeline``
    :param changes: values that take the place of the file's, as YAML
    :param option: by which they were given, for messages
    :param fields: of a request, by which some of them were given instead
    :raises SpecError: one ``file:line:column: message`` line for each mistake
    """
    document, marks = _parse(kind, text, file, what)
    places = Places(file=file, marks=marks, changes=changes, option=option, fields=fields)
    for keys, value in changes.items():
        _put(document, keys, value, places.given(keys))
    try:
        section = kind.model_validate(document)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            lines.append(f"{places.of(keys_of(problem), problem['type'])}: {describe(kind, problem)}")
        raise SpecError("\n".join(lines)) from None
    return SectionFile(section=section, places=places)


def read_document(kind: type[Section], path: Path, what: str) -> dict[str, Any]:
    """
    Read what a section's file says, unchecked.

    :param what: it holds, as ``a pipeline``
    :raises SpecError: where it is no mapping in YAML, or a key is given twice
    """
    return _parse(kind, _text(path), path.name, what)[0]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path.name}:1:1: not UTF-8 text: {error.reason} at byte {error.start}") from None


def _parse(
    kind: type[Section], text: str, file: str, what: str
) -> tuple[dict[str, Any], Mapping[KeyPath, tuple[Mark, Mark]]]:
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise SpecError(f"{file}:{line}:{column}: not valid YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        raise SpecError(f"{file}:1:1: not valid YAML: {error.reason}, at byte {error.position}") from None
    if not isinstance(node, yaml.MappingNode):
        raise SpecError(f"{file}:1:1: {what} is a mapping with the keys {', '.join(_top_level_keys(kind))}")
    marks: dict[KeyPath, tuple[Mark, Mark]] = {}
    _collect_marks(node, (), marks, file)
    return _Loader.construct(node), marks


def value_of(text: str, given: str) -> Any:
    """
    Read a single value, written as YAML.

    :param given: what gave it, for the message
    :raises SpecError: if it is no YAML
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
        return None if node is None else _Loader.construct(node)
    except yaml.YAMLError as error:
        raise SpecError(f"{given}: the value is not valid YAML: {getattr(error, 'problem', error)}") from None


def _put(document: Any, keys: KeyPath, text: str, given: str) -> None:
    """
    Give a setting another value.

    :param text: the value, as YAML
    :param given: what gave it, for messages
    """
    value = value_of(text, given)
    for number, key in enumerate(keys):
        place, last = ".".join(keys[:number]), number == len(keys) - 1
        if isinstance(document, list):
            if not key.isdecimal() or int(key) >= len(document):
                size = len(document)
                raise SpecError(
                    f"{given}: {place} is a list of {size}: name an entry by its number, from 0, or set all"
                )
            inner: Any = int(key)
        elif isinstance(document, dict):
            inner = key
            if not last and document.get(key) is None:
                document[key] = {}
        else:
            raise SpecError(f"{given}: {place} is {document!r}, and has no settings below it")
        if last:
            document[inner] = value
        document = document[inner]


class _Loader(yaml.CSafeLoader):
    """
    YAML 1.1 less its surprises: ``on`` is no boolean, and dates and ``3e-4`` are read by the field's type.

    libyaml reads a file ten times faster than the parser in Python.
    """

    @classmethod
    def construct(cls, node: yaml.Node) -> Any:
        return _apart(cls("").construct_document(node))


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag != "tag:yaml.org,2002:timestamp" and (tag != "tag:yaml.org,2002:bool" or first in "tTfF")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _apart(value: Any) -> Any:
    """Return the same, in which what an alias names is there twice: a change of one is none of the other."""
    if isinstance(value, dict):
        return {key: _apart(inner) for key, inner in value.items()}
    return [_apart(inner) for inner in value] if isinstance(value, list) else value


def _collect_marks(node: yaml.Node, path: KeyPath, marks: dict[KeyPath, tuple[Mark, Mark]], file: str) -> None:
    """Note where each key and each value begins; a key given twice is an error, not the last one's victory."""
    if isinstance(node, yaml.MappingNode):
        seen: set[Hashable] = set()
        for key, value in node.value:
            if key.value in seen:
                raise SpecError(
                    f"{file}:{key.start_mark.line + 1}:{key.start_mark.column + 1}: "
                    f"the key {key.value!r} is given twice; keep one"
                )
            seen.add(key.value)
            below = (*path, str(key.value))
            marks[below] = (_mark(key), _mark(value))
            _collect_marks(value, below, marks, file)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            below = (*path, str(index))
            marks[below] = (_mark(item), _mark(item))
            _collect_marks(item, below, marks, file)


def _mark(node: yaml.Node) -> Mark:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _position(path: KeyPath, problem: str, marks: Mapping[KeyPath, tuple[Mark, Mark]]) -> Mark:
    """A wrong key is shown at the key, a wrong value at the value, a missing key at the mapping that lacks it."""
    known = path
    while known and known not in marks:
        known = known[:-1]
    if not known:
        return 1, 1
    key, value = marks[known]
    return key if problem in {"extra_forbidden", "missing"} else value


def _top_level_keys(kind: type[Section]) -> list[str]:
    return [field.alias or name for name, field in kind.model_fields.items()]
