"""
Token streams: documents end to end, cut into sequences of equal length, in shards that are mapped and read in place.

A shard is nothing but tokens, little endian. Its samples overlap by one token, for a sample's last target is the next
one's first input: every token but the first of a shard is a target exactly once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from mlops.contract.step import BadConfigError, BadDataError, scratch_parent
from mlops.data.shards.aligned import INT, aligned
from mlops.data.shards.batch import Batch, IntArray, window_of
from mlops.data.shards.shard_cache import OpenShards, ShardCache
from mlops.data.shards.table_source import Numbering, Shards
from mlops.store import Store

TOKENS: Final = "tokens"
MAX_SHARD_BYTES: Final = 127 * 1024 * 1024

Tokens = npt.NDArray[Any]
"""``[S, C + 1]``: inputs are all but the last, targets all but the first of a row; overlapping views of a shard."""


def write_tokens(
    store: Store, place: str, name: str, documents: Iterable[IntArray], *, context: int, eos: int | None,
    vocab_size: int = 1 << 16, max_shard_bytes: int = MAX_SHARD_BYTES,
) -> dict[str, Any]:  # fmt: skip
    """
    Store a split of token documents, in the order in which they come.

    Tokens at the end that do not fill a sequence are not stored.

    :param place: folder of the step
    :param documents: token numbers, ``[T]`` each
    :param context: tokens that a model sees at once
    :param eos: token to put behind each document; None puts nothing
    :param vocab_size: tokens are smaller; up to 65,536 they take 2 bytes, else 4
    :return: the split's part of the manifest
    :raises BadDataError: naming a document with a token that is not in the vocabulary
    """
    if context < 1:
        raise BadConfigError(f"context must be at least 1, got {context}")
    dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
    shard_samples = max(1, (max_shard_bytes // dtype.itemsize - 1) // context)
    shards: list[dict[str, Any]] = []
    num_tokens = 0
    with tempfile.TemporaryDirectory(prefix="tokens-", dir=scratch_parent()) as scratch:
        for tokens in _shards(_checked(documents, name, vocab_size, eos, dtype), shard_samples, context, dtype):
            num_tokens += len(tokens) - (1 if shards else 0)
            path = Path(scratch, f"{name}-{len(shards):05d}.tokens")
            tokens.tofile(path)
            artifact = store.put_artifact(place, path.name, path)
            path.unlink()
            shards.append(
                {
                    "key": artifact.key,
                    "sha256": artifact.sha256,
                    "num_bytes": artifact.num_bytes,
                    "num_samples": (len(tokens) - 1) // context,
                }
            )
    num_samples = sum(shard["num_samples"] for shard in shards)
    return {
        "kind": TOKENS, "dtype": dtype.str, "context": context, "vocab_size": vocab_size, "num_tokens": num_tokens,
        "num_rows": num_samples, "num_samples": num_samples, "shards": shards,
    }  # fmt: skip


def _checked(
    documents: Iterable[IntArray], name: str, vocab_size: int, eos: int | None, dtype: np.dtype[Any]
) -> Iterator[Tokens]:
    if eos is not None and not 0 <= eos < vocab_size:
        raise BadConfigError(f"eos must be in range({vocab_size}), the vocabulary, got {eos}")
    for number, document in enumerate(documents):
        wrong = document[(document < 0) | (document >= vocab_size)]
        if wrong.size:
            raise BadDataError(
                f"document {number} of the split {name!r} has the token {wrong[0]}, but the vocabulary is "
                f"range({vocab_size}); use the tokenizer's vocab_size"
            )
        yield document.astype(dtype)
        if eos is not None:
            yield np.array([eos], dtype)


def _shards(parts: Iterable[Tokens], shard_samples: int, context: int, dtype: np.dtype[Any]) -> Iterator[Tokens]:
    """Iterate over shards of whole samples; the first token of each is the last of the one before."""
    size = shard_samples * context + 1
    shard, filled = np.empty(size, dtype), 0
    for part in parts:
        rest = part
        while len(rest):
            taken, rest = np.split(rest, [size - filled])
            shard[filled : filled + len(taken)] = taken
            filled += len(taken)
            if filled == size:
                yield shard
                shard[0], filled = shard[-1], 1
    whole = max(0, filled - 1) // context * context
    if whole:
        yield shard[: whole + 1]


class TokenSource:
    """A :class:`mlops.data.shards.batch.SampleSource` of sequences of tokens."""

    grouped = False
    block_samples = 1
    """Number of samples gathered at once: one, because a sequence is long enough to be gathered by itself."""

    def __init__(self, shards: Shards[Tokens], shard_sizes: IntArray, *, window_samples: int) -> None:
        self._shards = shards
        self._numbering = Numbering(shard_sizes)
        self.shard_sizes = shard_sizes
        self.window_samples = window_samples

    @classmethod
    def open(cls, cache: ShardCache, split: Mapping[str, Any]) -> TokenSource:
        """
        Open a split of token shards.

        :param split: the split's part of the manifest, as :func:`write_tokens` returned it
        """
        read = partial(_map, dtype=np.dtype(split["dtype"]), context=split["context"])
        sizes = np.array([shard["num_samples"] for shard in split["shards"]], np.int64)
        num_bytes = sum(shard["num_bytes"] for shard in split["shards"])
        return cls(
            OpenShards(cache, split["shards"], read), sizes, window_samples=window_of(split["num_samples"], num_bytes)
        )

    def lengths(self, samples: IntArray) -> IntArray:
        return np.ones(len(samples), np.int64)

    def gather(self, samples: IntArray, weight: float = 1.0) -> Batch:
        runs, places = self._numbering.runs(samples)
        self._shards.prefetch([number for number, _ in runs])
        # One copy of the bytes out of the map, whose pages may not be there; then each half widened by itself.
        tokens = np.concatenate([self._shards[number][local] for number, local in runs])
        if places is not None:
            tokens = tokens[places]
        shape = len(samples), tokens.shape[1] - 1
        features, labels = aligned((shape, INT), (shape, INT))
        np.copyto(features, tokens[:, :-1])
        np.copyto(labels, tokens[:, 1:])
        return Batch(
            features=torch.from_numpy(features),
            labels=torch.from_numpy(labels),
            mask=None,
            weights=torch.full((len(samples),), weight, dtype=torch.float32),
            samples=samples,
        )

    def gather_many(self, parts: Sequence[IntArray], weights: Sequence[float]) -> Sequence[Batch]:
        return [self.gather(part, weight) for part, weight in zip(parts, weights, strict=True)]

    def prefetch(self, samples: IntArray) -> None:
        self._shards.prefetch(self._numbering.numbers(samples))


def _map(path: Path, shard: Mapping[str, Any], *, dtype: np.dtype[Any], context: int) -> Tokens:
    tokens = np.memmap(path, dtype, mode="r")
    return np.lib.stride_tricks.sliding_window_view(tokens, context + 1)[::context]
