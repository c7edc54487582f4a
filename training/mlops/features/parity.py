"""The serving gate, which checks that served features equal those that the model was trained on, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from mlops.contract.step import BadConfigError
from mlops.data.shards.feature_table import FeatureTable, concat
from mlops.features.applied import FittedFeatures
from mlops.features.feature_set import FeatureSet
from mlops.features.transforms import State


def check_parity(features: FeatureSet, frame: pl.DataFrame, state: State, *, num_samples: int = 32) -> int:
    """
    Run :func:`check_served` on samples spread evenly over a table.

    :param frame: raw rows
    """
    fitted = FittedFeatures(features, state)
    whole = fitted.apply(frame)
    picked = np.linspace(0, whole.num_samples - 1, min(num_samples, whole.num_samples), dtype=np.int64)
    return check_served(fitted, frame, whole.take(np.unique(picked)))


def check_served(fitted: FittedFeatures, frame: pl.DataFrame, stored: FeatureTable) -> int:
    """
    Make samples' features again as a server would, without label and outcomes, and compare them with the stored ones:
    each as a request of its own, all as one batch, and as a stream of two, cut where it may cut a group.

    :param frame: raw rows, among them those of the stored samples
    :param stored: samples with their ids
    :return: number of samples compared
    :raises BadConfigError: naming the features whose served values differ: they depend on rows of other samples
    """
    assert stored.ids is not None, "features are materialised with ids"
    features = fitted.feature_set
    raw = fitted.with_ids(frame, stored.ids)
    if not features.order_by:
        raw = raw.unique(fitted.columns.names(), keep="any")  # of rows that are alike there may be any number
    rows, offsets = fitted.arranged(raw)
    known = rows.drop({*features.label_names, *features.outcomes}, strict=False)
    requests = [known[start:stop] for start, stop in pairwise(offsets.tolist())]
    order = {id_: place for place, id_ in enumerate(stored.ids.tolist())}
    expected = stored.take(np.asarray([order[id_] for id_ in fitted.ids(rows, offsets).tolist()], dtype=np.int64))
    for number, request in enumerate(requests):
        served = fitted.serve(request.select(fitted.columns.names()).to_dicts())
        _compare(fitted, served.features, expected.samples(number, number + 1).features)
    if requests:
        half = known.height // 2
        stream = list(fitted.apply_batches([known[:half], known[half:]]))
        for served in (fitted.apply(known), concat(stream)):
            _compare(fitted, served.features, expected.features)
    return len(requests)


def _compare(fitted: FittedFeatures, served: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> None:
    features = fitted.feature_set
    if served.shape != expected.shape:
        fault = f"a server would make {len(served)} rows of {len(expected)}"
    else:
        differs = (served.view(np.uint32) != expected.view(np.uint32)).any(axis=0)
        if not differs.any():
            return
        fault = f"served values of {_names(fitted.feature_names, differs)} differ from the materialised ones"
    group = f", or its own group with .over({', '.join(features.group_by)})" if features.grouped else " alone"
    raise BadConfigError(f"{features.line}: {fault}: a feature must follow from its own row{group}")


def _names(names: Sequence[str], chosen: npt.NDArray[np.bool_]) -> str:
    return ", ".join(repr(name) for name, is_chosen in zip(names, chosen, strict=True) if is_chosen)
