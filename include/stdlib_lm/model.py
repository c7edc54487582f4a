"""A small GPT: causal attention and an MLP in each block, both behind a layer norm (pre-norm, as GPT-2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """``[B, C, W] -> [B, C, W]``"""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mixed = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        heads = self.qkv(self.attention_norm(hidden)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.mixed(attended.transpose(1, 2).flatten(2))
        mlp: Tensor = self.mlp(self.mlp_norm(hidden))
        return hidden + mlp


class GPT(nn.Module):
    """Tokens ``[B, C]`` to logits over the vocabulary, ``[B, C, V]``."""

    def __init__(self, *, vocab_size: int, context: int, width: int, num_blocks: int, num_heads: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocab_size, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def build_model(config: Any) -> nn.Module:
    """``model_args``: ``width``, ``num_blocks``, ``num_heads``."""
    return GPT(
        vocab_size=config.vocab_size, context=config.context, width=config.width, num_blocks=config.num_blocks,
        num_heads=config.num_heads,
    )  # fmt: skip
