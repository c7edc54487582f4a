"""The outputs of a model: their shape, and the rows among padding."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from mlops.contract.step import BadConfigError
from mlops.data.shards.batch import Batch


def check_outputs(outputs: Tensor, batch: Batch, num_outputs: int = 1) -> Tensor:
    """
    Return the outputs, after a check of their shape: ``[B]`` or, where rows are grouped, ``[B, D]``, and with several
    numbers for a row one more dimension.

    :raises BadConfigError: where the shape is another
    """
    rows = batch.weights if batch.mask is None else batch.mask
    wanted = [*rows.shape, *([num_outputs] if num_outputs > 1 else [])]
    if list(outputs.shape) != wanted:
        each = "one number" if num_outputs == 1 else f"{num_outputs} numbers"
        fix = ": squeeze its last dimension" if list(outputs.shape) == [*wanted, 1] else ""
        raise BadConfigError(
            f"the model maps features {list(batch.features.shape)} to {list(outputs.shape)}; {each} per row are "
            f"needed, {wanted}{fix}"
        )
    return outputs


def without_padding(outputs: Tensor, batch: Batch) -> npt.NDArray[np.float32]:
    """
    Return the rows of outputs ``[B, ...]`` or, where grouped, ``[B, D, ...]``: ``[N, ...]``.

    :param batch: on the CPU
    """
    outputs = outputs.float().cpu()
    rows: npt.NDArray[np.float32] = (outputs if batch.mask is None else outputs[batch.mask]).numpy()
    return rows


def mean_of_rows(losses: Tensor, batch: Batch) -> Tensor:
    """Return the loss of each sample, ``[B]``: the mean of its rows."""
    if batch.mask is None:
        return losses
    return (losses * batch.mask).sum(1) / batch.mask.sum(1)
