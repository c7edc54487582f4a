"""
Aligned memory for batches.

A kernel may take another path, and so give other bits, where its inputs begin elsewhere within a cache line: MKL does
for few rows and for narrow outputs. Numpy aligns to 16 bytes only, and a view begins wherever what is before it ends.
So every tensor of a batch begins at a multiple of 64 bytes, whoever gathers it, and whatever was gathered before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

ALIGNMENT: Final = 64
"""Bytes: a cache line, and the widest vector register."""

FLOAT: Final = np.dtype(np.float32)
BOOL: Final = np.dtype(np.bool_)
INT: Final = np.dtype(np.int64)


def aligned(*wanted: tuple[Sequence[int], np.dtype[Any]]) -> list[npt.NDArray[Any]]:
    """
    Arrays that are not initialised and begin at multiples of :data:`ALIGNMENT`.

    They are one allocation, which lives as long as any of them: for many small ones that takes a fifth of the time.

    :param wanted: shape and type of each
    """
    starts, end = [], 0
    for shape, dtype in wanted:
        starts.append(end)
        end += -(-prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    whole = np.empty(end + ALIGNMENT, np.uint8)
    first = -whole.ctypes.data % ALIGNMENT
    return [
        np.ndarray(shape, dtype, whole, first + start) for (shape, dtype), start in zip(wanted, starts, strict=True)
    ]
