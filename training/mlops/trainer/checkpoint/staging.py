"""Memory that a save copies the state into, so that the training can go on; reused from save to save."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import weakref
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch

from mlops.trainer.checkpoint.planning import CheckpointError, RankPlan

_PORTABLE: Final = 1
"""cudaHostRegisterPortable: pinned for every GPU."""

logger = logging.getLogger(__name__)

SMALL_BYTES: Final = 1 << 20
"""Less than this is copied or summed before a thread has begun."""


class Staging:
    """
    One rank's file as it will be written, in memory: page-aligned, pinned where the state is on a GPU.

    Touched at once: the first copy into fresh memory takes several times as long as the next ones. Used in turns:
    :meth:`fill`, then by whoever writes :meth:`wait`, :attr:`memory` and :meth:`checksums`, then ``fill`` again.
    """

    def __init__(self, plan: RankPlan, *, pinned: bool) -> None:
        self.plan = plan
        self.copy_seconds = 0.0
        """How long the GPU's stream was held up by the copies of the newest fill that was waited for."""
        # Huge pages: copying into 4 KB ones takes a third longer.
        memory = mmap.mmap(-1, max(plan.file_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._arena = torch.frombuffer(memory, dtype=torch.uint8)[: plan.file_bytes].zero_()
        self._copies: list[_Copies] = []
        if pinned and plan.file_bytes:
            _pin(self, memory, self._arena)
        self._views = [
            self._arena[placed.start : placed.start + placed.num_bytes].view(placed.dtype).view(placed.shape)
            for placed in plan.placed
        ]

    @property
    def memory(self) -> memoryview:
        array: Any = self._arena.numpy()
        return memoryview(array)

    def fill(self, sources: Sequence[torch.Tensor]) -> None:
        """
        Copy the state; it may change as soon as this returns, on a GPU by work that is put into its current stream.

        A GPU's copies are only put into that stream, for a forward pass already changes buffers; whoever reads
        :meth:`waits <wait>` for them. The stream is held up, the host is not.
        """
        devices = sorted({source.device for source in sources if source.is_cuda}, key=str)
        self._copies = [_Copies(device) for device in devices]
        pairs = list(zip(self._views, sources, strict=True))
        plain = [pair for pair in pairs if _is_plain(*pair)]
        others = [pair for pair in pairs if not _is_plain(*pair)]
        for view, source in others:
            view.copy_(source, non_blocking=True)
        _copy_bytes(plain)
        for copies in self._copies:
            copies.end()

    def wait(self) -> None:
        """Until all is here. Called by any thread, before it reads."""
        self.copy_seconds = sum(copies.wait() for copies in self._copies)

    def checksums(self) -> list[int]:
        """CRC-32 of each item, in order."""
        memory = self.memory
        return [zlib.crc32(memory[placed.start : placed.start + placed.num_bytes]) for placed in self.plan.placed]


class _Copies:
    """The copies that one device's current stream makes between this and :meth:`end`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begun, self._ended = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
        self._begun.record(torch.cuda.current_stream(device))

    def end(self) -> None:
        self._ended.record(torch.cuda.current_stream(self._device))

    def wait(self) -> float:
        """:return: seconds that they took"""
        # A fresh thread is on GPU 0, and would take memory there.
        with torch.cuda.device(self._device):
            self._ended.synchronize()
            milliseconds: float = self._begun.elapsed_time(self._ended)
            return milliseconds / 1000


def _pin(owner: object, memory: mmap.mmap, arena: torch.Tensor) -> None:
    """
    Lock memory in place for a GPU, for as long as its owner lives.

    Not by torch's allocator, which takes the next power of two, up to twice as much, and keeps it.

    :raises CheckpointError: where the system does not give it
    """
    if hasattr(mmap, "MADV_DONTFORK"):
        # Of a child's copy and the parent's the GPU would write into one, and the parent might read the other.
        memory.madvise(mmap.MADV_DONTFORK)
    code = int(torch.cuda.cudart().cudaHostRegister(arena.data_ptr(), arena.nbytes, _PORTABLE))
    if code:
        raise CheckpointError(
            f"{arena.nbytes / 1e6:.0f} MB of memory for checkpoints cannot be pinned, CUDA error {code}: give the node "
            "or the pod more memory, or more processes, which hold less of the state each"
        )
    # Not at the end of the process, where CUDA may be gone already.
    weakref.finalize(owner, _unpin, memory, arena.data_ptr()).atexit = False


def _unpin(memory: mmap.mmap, address: int) -> None:
    if code := int(torch.cuda.cudart().cudaHostUnregister(address)):
        logger.warning("%d bytes of memory for checkpoints stay pinned, CUDA error %d", len(memory), code)


def _is_plain(view: torch.Tensor, source: torch.Tensor) -> bool:
    return source.is_cpu and source.is_contiguous() and source.dtype == view.dtype


def _copy_bytes(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """
    By two threads, where this process has two cores, each taking the next tensor: one core does not fill the bus.

    Not by ``copy_``: OpenMP's threads wait for each other at each tensor, which takes five times as long where a core
    is taken, as by the loader's thread.
    """
    rest = iter(pairs)

    def work() -> None:
        for view, source in rest:
            ctypes.memmove(view.data_ptr(), source.data_ptr(), view.nbytes)

    cores = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if cores == 1 or sum(view.nbytes for view, _ in pairs) < SMALL_BYTES:
        work()
        return
    with ThreadPoolExecutor(1, thread_name_prefix="checkpoint-copy") as beside:
        done = beside.submit(work)
        work()
        done.result()
