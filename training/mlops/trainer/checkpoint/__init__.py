"""Checkpoints of a training (``checkpoints``), and weights as one file (``weights``)."""
