"""The setting ``train.sample_order``: samples from easy to hard at first."""

from __future__ import annotations

from pydantic import Field

from mlops.contract.section import ImportPath, Section


class SampleOrder(Section):
    """
    The samples of an epoch in the order of a measure, the least first, instead of a random one. Each is still there
    once in each epoch, in the same step at any number of processes.
    """

    by: ImportPath
    """``difficulty(batch) -> Tensor``, ``[B]``: a number for each sample, by its features and label alone. Each process
    reads the samples of a window (4 GiB) once more to measure them; they are sorted within it."""
    until: float = Field(default=1.0, gt=0, le=1)
    """Share of the epochs that are so ordered, the first ones; those after them are in random order."""

    def ordered_epochs(self, epochs: int) -> int:
        """Return the number of epochs that begin before that share of all is done."""
        return sum(number / epochs < self.until for number in range(epochs))
