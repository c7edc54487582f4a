"""A small convolutional net: two layers of 3 x 3, and one that tells the classes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

SIDE = 8
"""Pixels of an image's height, and of its width."""


class DigitClassifier(nn.Module):
    """``[..., 64]`` pixels to ``[..., 10]`` logits."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * channels * (SIDE // 2) ** 2, num_classes),
        )

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layers(features.unflatten(-1, (1, SIDE, SIDE)))
        return logits


def build_model(config: Any) -> nn.Module:
    """``model_args``: ``channels`` of the first layer; the second has twice as many."""
    return DigitClassifier(config.channels, config.num_outputs)
