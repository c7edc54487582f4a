"""Memory that a save copies the state into, so that the training can go on; reused from save to save."""

from __future__ import annotations

import ctypes
import mmap
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from training.trainer.checkpoint.planning import RankPlan


class Staging:
    """
    One rank's file as it will be written, in memory: page-aligned, pinned where the state is on a GPU.

    Touched at once: the first copy into fresh memory takes several times as long as the next ones.
    """

    def __init__(self, plan: RankPlan, *, pinned: bool) -> None:
        self.plan = plan
        if pinned:
            self._arena = torch.zeros(plan.file_bytes, dtype=torch.uint8, pin_memory=True)
        else:
            # Huge pages: copying into 4 KB ones takes a third longer.
            memory = mmap.mmap(-1, max(plan.file_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                memory.madvise(mmap.MADV_HUGEPAGE)
            self._arena = torch.frombuffer(memory, dtype=torch.uint8)[: plan.file_bytes].zero_()
        self._views = [
            self._arena[placed.start : placed.start + placed.num_bytes].view(placed.dtype).view(placed.shape)
            for placed in plan.placed
        ]

    @property
    def memory(self) -> memoryview:
        array: Any = self._arena.numpy()
        return memoryview(array)

    def fill(self, sources: Sequence[torch.Tensor]) -> None:
        """Copy the state; it may change as soon as this returns."""
        pairs = list(zip(self._views, sources, strict=True))
        plain = [pair for pair in pairs if _is_plain(*pair)]
        others = [pair for pair in pairs if not _is_plain(*pair)]
        for view, source in others:
            view.copy_(source, non_blocking=True)
        _copy_bytes(plain)
        for device in {source.device for _, source in others if source.is_cuda}:
            torch.cuda.current_stream(device).synchronize()

    def checksums(self) -> list[int]:
        """CRC-32 of each item, in order."""
        memory = self.memory
        return [zlib.crc32(memory[placed.start : placed.start + placed.num_bytes]) for placed in self.plan.placed]


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
    with ThreadPoolExecutor(1, thread_name_prefix="checkpoint-copy") as beside:
        done = beside.submit(work) if cores > 1 else None
        work()
        if done is not None:
            done.result()
