"""A small GPT: token and position embeddings, blocks of attention and MLP before which is normed, a head."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.nn import functional


class Attention(nn.Module):
    """Causal self-attention. ``[B, T, C] -> [B, T, C]``; a rank of a tensor-parallel group has some of the heads."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.head_width = width // num_heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (
            layer(hidden).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.dropout(self.attention(self.first_norm(hidden)))
        return hidden + self.dropout(self.narrow(functional.gelu(self.widen(self.second_norm(hidden)))))


class Embedding(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))


class GPT(nn.Module):
    """Tokens ``[B, T]`` to logits ``[B, T, V]``."""

    def __init__(
        self,
        *,
        vocabulary: int = 32,
        length: int = 8,
        width: int = 16,
        num_heads: int = 4,
        num_blocks: int = 4,
        dropout: float = 0.0,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, length, width)
        self.blocks = nn.ModuleList(Block(width, num_heads, dropout) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))

    def tensor_parallel_plan(self) -> Mapping[str, ParallelStyle]:
        """Heads and the MLP's columns are split; one all-reduce ends each attention and each MLP."""
        split = dict.fromkeys(("attention.query", "attention.key", "attention.value", "widen"), ColwiseParallel())
        joined = dict.fromkeys(("attention.output", "narrow"), RowwiseParallel())
        return {
            "embedding.token": ColwiseParallel(output_layouts=Replicate()),
            **{f"blocks.*.{name}": style for name, style in (split | joined).items()},
            "head": ColwiseParallel(output_layouts=Replicate()),
        }

    def pipeline_stages(self, num_stages: int) -> list[nn.Module]:
        num_blocks = len(self.blocks)
        cuts = [num_blocks * index // num_stages for index in range(num_stages + 1)]
        return [
            Stage(
                self.embedding if index == 0 else None,
                self.blocks[cuts[index] : cuts[index + 1]],
                (self.norm, self.head) if index == num_stages - 1 else None,
            )
            for index in range(num_stages)
        ]


class Stage(nn.Module):
    def __init__(
        self, embedding: nn.Module | None, blocks: nn.ModuleList, top: tuple[nn.Module, nn.Module] | None
    ) -> None:
        super().__init__()
        self.embedding, self.blocks = embedding, blocks
        self.norm, self.head = top or (None, None)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.embedding is not None:
            hidden = self.embedding(hidden)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden if self.head is None else self.head(self.norm(hidden))
