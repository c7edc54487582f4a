"""What is trained: models, data and sizes, the same for every contender."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_FEATURES: Final = 31
CONTEXT: Final = 64
VOCABULARY: Final = 4_096
SEED: Final = 7


class MLP(nn.Module):
    """``[B, F]`` to ``[B]``."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(NUM_FEATURES, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1), nn.Flatten(0)
        )

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layers(features)
        return logits


class Block(nn.Module):
    """A layer of GPT-2 (Radford et al. 2019). ``[B, T, C]`` to the same."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x_BTC: Tensor) -> Tensor:
        batch, length, width = x_BTC.shape
        heads = self.qkv(self.norm_1(x_BTC)).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x_BTC = x_BTC + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x_BTC + self.mlp(self.norm_2(x_BTC))
        return result


class GPT(nn.Module):
    """10 million parameters. ``[B, T]`` token ids to logits ``[B, T, V]``."""

    def __init__(self, width: int = 256, num_layers: int = 11, num_heads: int = 8) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        # As GPT-2's. With torch's own, of 1, most of the softmax and its gradients are denormal numbers, which the
        # processor takes ten times as long for.
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTC = self.tokens(tokens_BT) + self.positions.weight[: tokens_BT.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x_BTC)))
        return logits


def binary_losses(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """``[B]``"""
    return functional.binary_cross_entropy_with_logits(model(features), labels, reduction="none")


def token_losses(model: nn.Module, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """``[B]``, the mean over a sequence's tokens."""
    logits = model(tokens_BT)
    return (
        functional.cross_entropy(logits.flatten(0, 1), targets_BT.flatten(), reduction="none")
        .view_as(targets_BT)
        .mean(1)
    )


Losses = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A training of ``warm + measured`` optimizer steps."""

    name: str
    model: Callable[[], nn.Module]
    losses: Losses
    processes: int
    global_batch: int
    """Samples."""
    warm: int
    """Steps before the clock starts."""
    measured: int
    rounds: int

    @property
    def num_samples(self) -> int:
        return (self.warm + self.measured) * self.global_batch

    def build(self) -> nn.Module:
        """The same weights each time."""
        torch.manual_seed(SEED)
        return self.model()


WORKLOADS: Final = {
    workload.name: workload
    for workload in (
        Workload(
            name="mlp_64",
            model=MLP,
            losses=binary_losses,
            processes=1,
            global_batch=64,
            warm=50,
            measured=500,
            rounds=15,
        ),
        Workload(
            name="mlp_1024",
            model=MLP,
            losses=binary_losses,
            processes=2,
            global_batch=1024,
            warm=10,
            measured=60,
            rounds=15,
        ),
        Workload(name="gpt", model=GPT, losses=token_losses, processes=2, global_batch=8, warm=4, measured=6, rounds=9),
    )
}


def table(num_rows: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Features ``[N, F]`` and the labels ``[N]`` that a linear rule and chance give them."""
    chance = np.random.default_rng(SEED)
    features = chance.standard_normal((num_rows, NUM_FEATURES), dtype=np.float32)
    logits = features @ chance.standard_normal(NUM_FEATURES).astype(np.float32)
    labels = (chance.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return features, labels


def tokens(num_tokens: int) -> npt.NDArray[np.int64]:
    """Token ids in which each follows from the one before, mostly: something to be learnt."""
    chance = np.random.default_rng(SEED)
    noise = chance.integers(0, VOCABULARY, num_tokens)
    return np.where(chance.random(num_tokens) < 0.5, np.roll(noise, 1) * 31 % VOCABULARY, noise)


class Stopwatch:
    """Times optimizer steps from inside the loss, which every loop calls once for each: no loop is asked to help."""

    def __init__(self, workload: Workload) -> None:
        self._first, self._last = workload.warm, workload.warm + workload.measured
        self._measured = workload.measured
        self._calls = 0
        self._begin = self._end = 0.0

    def tick(self) -> None:
        self._calls += 1
        if self._calls == self._first:
            self._begin = time.perf_counter()
        elif self._calls == self._last:
            self._end = time.perf_counter()

    @property
    def steps_per_second(self) -> float:
        if not self._end:
            raise RuntimeError(f"only {self._calls} of {self._last} steps were made")
        return self._measured / (self._end - self._begin)
