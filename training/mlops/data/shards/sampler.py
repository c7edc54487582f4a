"""
The order of an epoch's samples: a pure function of (seed, epoch, position), without an index of the samples.

How many ranks read, how far they prefetch and where they start does not enter, so that every rank computes the places
it needs, and any number of ranks, changed at any step, shares one order.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
_Words = npt.NDArray[np.unsignedinteger[Any]]

_ROUNDS: Final = 6
# The halves of a small range hold few values: six rounds leave a pattern in up to 64, eight do not (pairs, chi-square).
_SMALL: Final = 1 << 12
_ROUNDS_IF_SMALL: Final = 12
# Positions at once: the temporary arrays stay within a core's cache.
_CHUNK: Final = 1 << 14

# Of the search for shards: buckets for each, and shards that may begin in one.
_BUCKETS: Final = 8
_MOST_IN_BUCKET: Final = 2


class Permutation:
    """
    A pseudo-random permutation of ``range(size)`` that needs no memory.

    A Feistel network on Z_a x Z_b with ``a * b >= size`` (the generalised Feistel cipher of Black and Rogaway, "Ciphers
    with Arbitrary Finite Domains", 2002), whose results beyond ``size`` are permuted again until they fall into it
    (cycle walking, the same paper). With a and b close to the root of the size that concerns one of about a thousand
    in a million. The round function is the 32-bit finaliser of MurmurHash3 after a keyed multiplication. All is integer
    arithmetic: the same on every machine and, unlike a generator's ``permutation``, with every version of numpy.

    :param size: at most ``2 ** 62``
    :param key: any integers, e.g. seed and epoch; other keys, other permutations
    """

    def __init__(self, size: int, *key: int) -> None:
        assert 0 <= size <= 1 << 62, size
        self.size = size
        self._a = math.isqrt(max(0, size - 1)) + 1  # the root, rounded up
        self._b = max(1, -(-size // self._a))
        rounds = _ROUNDS if size > _SMALL else _ROUNDS_IF_SMALL
        digest = hashlib.shake_128(repr(key).encode()).digest(8 * rounds)
        words = np.frombuffer(digest, "<u4").astype(np.uint32).reshape(rounds, 2)
        self._keys = [(factor | np.uint32(1), offset) for factor, offset in words]
        # A processor computes twice as many of 32 bits at once, and multiplies those of 64 bits slowly.
        self._word: type[np.uint32 | np.uint64] = np.uint32 if size <= 1 << 32 else np.uint64

    def __call__(self, positions: IntArray) -> IntArray:
        """
        Map positions to their permuted places.

        :param positions: each in ``range(size)``
        :return: the place of each; of the same shape
        """
        if positions.size and not (positions.min() >= 0 and positions.max() < self.size):
            raise IndexError(f"positions {positions.min()}..{positions.max()} are not all in range({self.size})")
        flat = positions.reshape(-1)
        places = np.empty(flat.shape, np.int64)
        for start in range(0, len(places), _CHUNK):
            part = self._permute(flat[start : start + _CHUNK].astype(self._word))
            while (outside := np.flatnonzero(part >= self.size)).size:
                part[outside] = self._permute(part[outside])
            places[start : start + _CHUNK] = part
        return places.reshape(positions.shape)

    def _permute(self, places: _Words) -> _Words:
        a, b = self._word(self._a), self._word(self._b)
        right = places // a
        left = places - right * a
        for number, (factor, offset) in enumerate(self._keys):
            if number % 2 == 0:
                _add_hash(left, right, factor, offset, a)
            else:
                _add_hash(right, left, factor, offset, b)
        right *= a
        right += left
        return right


def _add_hash(
    half: _Words, other: _Words, factor: np.uint32, offset: np.uint32, modulus: np.unsignedinteger[Any]
) -> None:
    """Add a hash of the other half, in place, modulo ``modulus``."""
    bits = other.astype(np.uint32)
    bits *= factor
    bits += offset
    shifted = bits >> np.uint32(16)
    bits ^= shifted
    bits *= np.uint32(0x85EBCA6B)
    np.right_shift(bits, np.uint32(13), out=shifted)
    bits ^= shifted
    bits *= np.uint32(0xC2B2AE35)
    np.right_shift(bits, np.uint32(16), out=shifted)
    bits ^= shifted
    # Scaled to range(modulus) by multiplication, for division is slow; Lemire 2019. Of 32 bits the upper half counts,
    # so that the product is of no more: the modulus is of as many.
    width = 4 * half.itemsize
    bits >>= np.uint32(32 - width)
    scaled = bits.astype(half.dtype, copy=False)
    scaled *= modulus
    scaled >>= half.dtype.type(width)
    half += scaled
    # Unsigned: what is below the modulus wraps around to above it.
    np.minimum(half, half - modulus, out=half)


class EpochSampler:
    """
    The order of an epoch: shards are shuffled, dealt into windows, and the samples of each window are shuffled.

    A reader needs the shards of one window at a time, and the next one's soon. Data that fits one window is shuffled
    as a whole. Memory: 16 bytes a shard, 128 MB for the 8 million shards of a petabyte.

    :param shard_sizes: ``[K]``, samples of each shard
    :param window_samples: samples of a window, give or take a shard: a window is the shards that begin in one stretch
        of so many samples
    """

    def __init__(self, shard_sizes: IntArray, *, seed: int, epoch: int, window_samples: int = 1 << 22) -> None:
        self._key = (seed, epoch)
        sizes = np.asarray(shard_sizes, np.int64)
        order = Permutation(len(sizes), seed, epoch)(np.arange(len(sizes)))
        starts = np.cumsum(sizes[order]) - sizes[order]
        firsts = (np.cumsum(sizes) - sizes)[order]
        filled = sizes[order] > 0
        self._starts, self._firsts = starts[filled], firsts[filled]
        self.num_samples = int(sizes.sum())
        edges = np.flatnonzero(np.diff(self._starts // window_samples)) + 1
        self.window_starts = np.concatenate([[0], self._starts[edges], [self.num_samples]])
        """``[W + 1]``, positions at which the windows start, and the end of the epoch."""

    def window_of(self, position: int) -> int:
        """Return the number of the window that a position lies in."""
        return int(np.searchsorted(self.window_starts[1:-1], position, side="right"))

    def __call__(self, positions: IntArray) -> IntArray:
        """
        Map positions in the epoch to samples of the split.

        :param positions: in ``range(num_samples)``; quick where they lie in few windows
        :return: numbers of the samples in the split, its shards concatenated
        """
        if not positions.size:
            return positions.astype(np.int64)
        places = np.empty(positions.shape, np.int64)
        ends = (positions.min(), positions.max())
        first, last = np.searchsorted(self.window_starts[1:-1], ends, side="right").tolist()
        for window in range(first, last + 1):
            start, stop = self.window_starts[window : window + 2].tolist()
            inside = (positions >= start) & (positions < stop) if first < last else ...
            places[inside] = Permutation(stop - start, *self._key, window)(positions[inside] - start) + start
        # Only among the shards of these windows: a search takes the longer the more there are.
        edges = self.window_starts[[first, last + 1]]
        shards = slice(*np.searchsorted(self._starts, edges).tolist())
        starts = self._starts[shards]
        places += (self._firsts[shards] - starts)[intervals_of(places, starts, int(edges[1]))]
        return places


def intervals_of(places: IntArray, starts: IntArray, stop: int) -> IntArray:
    """
    Return ``np.searchsorted(starts, places, side="right") - 1``. searchsorted itself mispredicts every other branch: 50
    ns a place.

    :param places: in ``range(starts[0], stop)``
    :param starts: ascending
    """
    origin = int(starts[0])
    shift = max(0, ((stop - origin) // (_BUCKETS * len(starts))).bit_length() - 1)
    buckets: IntArray = np.searchsorted(starts, np.arange(origin, stop, 1 << shift), side="right") - 1
    if np.diff(buckets, append=len(starts) - 1).max() > _MOST_IN_BUCKET:  # intervals of very unequal length
        found: IntArray = np.searchsorted(starts, places, side="right") - 1
        return found
    numbers: IntArray = buckets[(places - origin) >> shift]
    following = np.append(starts[1:], stop)
    while (beyond := places >= following[numbers]).any():
        numbers += beyond
    return numbers
