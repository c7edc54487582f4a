"""The serving gate: what is served must equal what the model was trained on, bit for bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from mlops_provider.step import BadConfigError
from training.data.shards import FeatureTable
from training.features.feature_set import FeatureSet
from training.features.transforms import State


def check_parity(features: FeatureSet, frame: pl.DataFrame, state: State, *, num_samples: int = 32) -> int:
    """
    Apply samples as a server would, one by one and as a small batch, without label and outcomes, and compare.

    :param frame: raw rows of one split
    :param num_samples: spread evenly over the split
    :return: samples compared
    :raises BadConfigError: naming the features whose served values differ: they depend on rows of other samples
    """
    whole = features.apply(frame, state)
    arranged = features.arrange(frame)
    unknown = [column for column in (features.label, *features.outcomes) if column in frame.columns]
    served = arranged.drop(unknown)
    picked = np.unique(np.linspace(0, whole.num_samples - 1, min(num_samples, whole.num_samples), dtype=np.int64))
    requests = [served[int(whole.offsets[i]) : int(whole.offsets[i + 1])] for i in picked]
    expected = [whole.samples(int(i), int(i) + 1).features for i in picked]
    for request, rows in zip(requests, expected, strict=True):
        _compare(features, served, state, features.apply(request, state), rows)
    if requests:
        _compare(features, served, state, features.apply(pl.concat(requests), state), np.concatenate(expected))
    return len(requests)


def _compare(
    features: FeatureSet, frame: pl.DataFrame, state: State, served: FeatureTable, expected: npt.NDArray[np.float32]
) -> None:
    if served.features.shape == expected.shape:
        differs = (served.features.view(np.uint32) != expected.view(np.uint32)).any(axis=0)
        if not differs.any():
            return
        which = ", ".join(repr(features.names(frame, state)[i]) for i in np.flatnonzero(differs))
        fault = f"served values of {which} differ from the materialised ones"
    else:
        fault = f"a server would make {len(served.features)} rows of {len(expected)}"
    raise BadConfigError(
        f"{fault}: a feature must follow from its own row, or its own group with .over({', '.join(features.group_by)})"
    )
