"""Programs of the training or the validation runtime; see :mod:`benchmarks.data.group`."""
