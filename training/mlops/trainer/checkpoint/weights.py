"""Weights as one file: what a finished training leaves, and what is exported from a checkpoint."""

from __future__ import annotations

import io
from typing import Any, Final, Literal

import torch
import zstandard

Dtype = Literal["float32", "bfloat16", "float16"]

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


def serialise(state: dict[str, Any]) -> bytes:
    """
    torch's file format: equal states give equal bytes, whatever the order of their keys, for its zip records carry no
    time and no name.

    Tensors are copied first: a view would be saved with the whole storage it looks into.
    """
    buffer = io.BytesIO()
    torch.save(_compact(state), buffer)
    return buffer.getvalue()


def deserialise(data: bytes, device: torch.device) -> dict[str, Any]:
    """Tensors and plain values only, compressed or not: a file from elsewhere cannot run code."""
    if data[:4] == _ZSTD_MAGIC:
        data = zstandard.decompress(data)
    state: dict[str, Any] = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    return state


def export(weights: dict[str, Any], *, dtype: Dtype | None = None, compress: bool = False) -> bytes:
    """
    Weights for serving, as :func:`deserialise` and ``torch.load`` after ``zstd -d`` read them.

    :param dtype: of the floating-point tensors; None keeps each one's own
    :param compress: by zstd: 30 to 47% smaller for bfloat16, 7 to 10% for float32
    """
    if dtype is not None:
        weights = {name: _cast(value, getattr(torch, dtype)) for name, value in weights.items()}
    data = serialise(weights)
    return zstandard.ZstdCompressor(level=3, threads=-1, write_checksum=True).compress(data) if compress else data


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _compact(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, dict):
        return {key: _compact(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return type(value)(_compact(item) for item in value)
    return value
