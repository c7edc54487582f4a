"""Programs of the training runtime and of what it is compared with; see :mod:`benchmarks.training.group`."""
