"""A logit for each flight: the chance, on the log-odds scale, that it arrives late."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class DelayClassifier(nn.Module):
    """One hidden layer. Features [..., F] in, logits [...] out."""

    def __init__(self, num_features: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(num_features, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, 1)
        )

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layers(features).squeeze(-1)
        return logits


def build_model(config: Any) -> nn.Module:
    """``model_args``: ``hidden``, the width of the hidden layer."""
    return DelayClassifier(config.num_features, config.hidden)
