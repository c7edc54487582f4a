"""Scores flights one by one; the listwise loss sets those of a query against each other."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class FlightScorer(nn.Module):
    """Two hidden layers, the first with layer norm. Features [..., F] in, scores [...] out."""

    def __init__(self, num_features: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(num_features, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, features: Tensor) -> Tensor:
        scores: Tensor = self.layers(features).squeeze(-1)
        return scores


def build_model(config: Any) -> nn.Module:
    """``model_args``: ``hidden``, the width of the hidden layers."""
    return FlightScorer(config.num_features, config.hidden)
