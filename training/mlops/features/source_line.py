"""The line of the user's code that holds a definition, for messages that lead there."""

from __future__ import annotations

import ast
import difflib
import linecache
import sys
from collections.abc import Iterable
from pathlib import PurePath
from typing import NamedTuple

from mlops.code import BUNDLE

# dataclasses: replace() makes a feature set out of another.
_LIBRARY = ("mlops.features.", "dataclasses.")


class SourceLine(NamedTuple):
    """A line of a file; as text e.g. ``include/flights/features.py:24``."""

    file: str
    line: int

    def __str__(self) -> str:
        parts = PurePath(self.file).parts
        for start, part in enumerate(parts):
            if part == "include" or part.startswith(BUNDLE):
                return f"{'/'.join(parts[start:])}:{self.line}"
        return f"{self.file}:{self.line}"

    def argument(self, name: str, key: str | None = None) -> SourceLine:
        """
        Return the line of a keyword argument of the call that stands here, or of one key of its dict.

        Falls back to the line of the call itself if the code does not show it, e.g. for a computed dict.
        """
        try:
            tree = ast.parse("".join(linecache.getlines(self.file)))
        except SyntaxError:  # changed on disk since it was imported
            return self
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.lineno == self.line]
        for argument in (keyword for call in calls for keyword in call.keywords if keyword.arg == name):
            keys = [node for node in ast.walk(argument.value) if isinstance(node, ast.Constant) and node.value == key]
            if key is not None and keys:
                return SourceLine(self.file, keys[0].lineno)
            return SourceLine(self.file, argument.value.lineno)
        return self


def line_of_caller() -> SourceLine:
    """Return the line of code outside of this package that is now constructing a part of a feature set."""
    frame = sys._getframe(1)
    # The constructor of a dataclass is generated in its class's module, in no file.
    while f"{frame.f_globals.get('__name__', '')}.".startswith(_LIBRARY) and frame.f_back is not None:
        frame = frame.f_back
    return SourceLine(frame.f_code.co_filename, frame.f_lineno)


def no_column(name: str, columns: Iterable[str]) -> str:
    """Return ``there is no column 'hour'; did you mean 'hours'?``, or the columns that there are."""
    columns = list(columns)
    close = difflib.get_close_matches(name, columns, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(columns)}"
    return f"there is no column {name!r}; {hint}"
