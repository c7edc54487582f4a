"""Random numbers that follow from what is done: no process keeps any, and none shows in what another one computes."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_everything(*numbers: int) -> None:
    """Seed torch, numpy and random with a hash of the numbers, e.g. (seed, step, seat). Costs about 10 microseconds."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest[:4], "little")
    # torch.manual_seed looks for every kind of accelerator, which takes ten times as long.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    np.random.seed(seed)
    random.seed(int.from_bytes(digest[4:], "little"))


@contextmanager
def random_states_kept() -> Iterator[None]:
    """
    Put back, at the end, the random states that :func:`seed_everything` seeds: those of torch, numpy and random.

    They are the process's, not the thread's: not for what several threads do at once, as a server's do.
    """
    of_numpy, of_random = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_random)


@contextmanager
def drawn_alike() -> Iterator[None]:
    """Have what is within draw the same random numbers each time, of which nobody outside sees anything."""
    with random_states_kept():
        seed_everything()
        yield
