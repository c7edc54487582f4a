"""Micro batches on their way to a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from mlops.data.shards.loader import Batch


def moved(batches: Sequence[Batch], device: torch.device) -> Iterator[Batch]:
    """
    Each batch on the device, just before its use. The next one is copied meanwhile; those behind it are on the host.

    The memory is the compute stream's own, so that it is reused as soon as that stream is done with it. The stream that
    copies waits until then, and the compute stream waits for the copy: no host waits, and no batch is overwritten.
    """
    if device.type != "cuda":
        yield from (batch.to(device) for batch in batches)
        return
    side = _side_stream(device)
    coming: tuple[Batch, torch.cuda.Event] | None = None
    try:
        for batch in batches:
            following = _begin(batch, device, side)
            if coming is not None:
                yield _arrived(coming, device)
            coming = following
        if coming is not None:
            yield _arrived(coming, device)
    finally:
        # Where the pass has failed: what takes the memory of a batch that is on its way comes after the copy.
        torch.cuda.current_stream(device).wait_stream(side)


def _arrived(coming: tuple[Batch, torch.cuda.Event], device: torch.device) -> Batch:
    batch, copied = coming
    torch.cuda.current_stream(device).wait_event(copied)
    return batch


def _begin(batch: Batch, device: torch.device, side: torch.cuda.Stream) -> tuple[Batch, torch.cuda.Event]:
    """Begin to copy a batch; it is there when the event is."""
    there = batch.map(lambda tensor: torch.empty_like(tensor, device=device))
    # What the compute stream still does in this memory comes first.
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for target, source in zip(there.tensors(), batch.tensors(), strict=True):
            target.copy_(source, non_blocking=True)
        copied = side.record_event()
    return there, copied


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all steps: a new one each time would be another of the few that a GPU has."""
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)
    return _STREAMS[device]


_STREAMS: dict[torch.device, torch.cuda.Stream] = {}
