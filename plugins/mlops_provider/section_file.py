"""Read a section from a YAML file; every mistake is reported with file, line, column, value and fix."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
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
    """A section that a file holds, and where in the file its settings stand."""

    name: str
    """Name of the file, for messages."""
    section: SectionT
    marks: Mapping[KeyPath, tuple[Mark, Mark]]
    """Where each key and its value begin."""

    def error(self, complaints: Iterable[tuple[KeyPath, str]]) -> SpecError | None:
        """One line for each complaint about the setting at a path; None where there is none."""
        lines = []
        for path, complaint in complaints:
            line, column = _position(path, "value", self.marks)
            lines.append(f"{self.name}:{line}:{column}: {complaint}")
        return SpecError("\n".join(lines)) if lines else None


def read_section(kind: type[SectionT], path: Path, what: str) -> SectionFile[SectionT]:
    """
    :param what: the file holds, as ``a pipeline``
    :raises SpecError: one ``file:line:column: message`` line for each mistake
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise SpecError(f"{path.name}:{line}:{column}: not valid YAML: {error.problem}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path.name}:1:1: not UTF-8 text: {error.reason} at byte {error.start}") from None
    if not isinstance(node, yaml.MappingNode):
        raise SpecError(f"{path.name}:1:1: {what} is a mapping with the keys {', '.join(_top_level_keys(kind))}")
    marks: dict[KeyPath, tuple[Mark, Mark]] = {}
    _collect_marks(node, (), marks, path.name)
    try:
        section = kind.model_validate(_Loader.construct(node))
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            line, column = _position(keys_of(problem), problem["type"], marks)
            lines.append(f"{path.name}:{line}:{column}: {describe(kind, problem)}")
        raise SpecError("\n".join(lines)) from None
    return SectionFile(name=path.name, section=section, marks=marks)


class _Loader(yaml.CSafeLoader):
    """
    YAML 1.1 less its surprises: ``on`` is no boolean, and dates and ``3e-4`` are read by the field's type.

    libyaml reads a file ten times faster than the parser in Python.
    """

    @classmethod
    def construct(cls, node: yaml.Node) -> Any:
        return cls("").construct_document(node)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag != "tag:yaml.org,2002:timestamp" and (tag != "tag:yaml.org,2002:bool" or first in "tTfF")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


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
