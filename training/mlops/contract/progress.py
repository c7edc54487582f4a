"""The names by which a training tells MLflow how far it is."""

from __future__ import annotations

from typing import Final

NUM_STEPS: Final = "num_steps"
"""Parameter: optimizer steps of all epochs; of a learner that has none, its epochs."""
TRAINING_SECONDS: Final = "training_seconds"
"""
Metric, by step: the seconds that it took to come there, validation and saves included, starts of processes not. What
was done again after a restart counts once, so that its share of the time since the training began is the goodput.
"""
