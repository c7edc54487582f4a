"""What somebody who may edit XComs can put in place of a ref, or of a part of it."""

from __future__ import annotations

import copy
import functools
import itertools
import operator
from collections.abc import Iterator
from typing import Any

ODD: tuple[Any, ...] = (
    None,
    True,
    7,
    -1.5,
    float("nan"),
    "",
    "2013-01-01",
    [],
    [1],
    ["a"],
    {},
    {"a": 1},
    {"kind": "report"},
)


def with_odd_values(document: Any) -> Iterator[Any]:
    """Yield a JSON document again and again, each time with an odd value at one place of it."""
    for (*above, last), value in itertools.product(list(_places(document))[1:], ODD):
        changed: Any = copy.deepcopy(document)
        functools.reduce(operator.getitem, above, changed)[last] = value
        yield changed


def _places(document: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    for key, value in document.items() if isinstance(document, dict) else ():
        yield from _places(value, (*place, key))
