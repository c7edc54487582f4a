"""The serving gate, which checks that served features equal those that the model was trained on, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.shards.feature_table import FeatureTable, concat
from mlops.features.applied import FittedFeatures
from mlops.features.feature_set import FeatureSet
from mlops.features.transforms import State

_ROW: Final = "__row"


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
    each as a request of its own, all as one batch, and as a stream of two, cut where it may cut a group. A group is
    also asked for with the rows that ``FeatureSet.where`` leaves out.

    :param frame: raw rows, among them those of the stored samples
    :param stored: samples with their ids
    :return: number of samples compared
    :raises BadConfigError: naming the features whose served values differ: they depend on rows of other samples, or on
        rows that are left out
    """
    assert stored.ids is not None, "features are materialised with ids"
    features = fitted.feature_set
    raw = fitted.with_ids(frame, stored.ids)
    if not features.order_by:
        raw = raw.unique(fitted.columns.names(), keep="any")  # of rows that are alike there may be any number
    raw = raw.with_row_index(_ROW)
    rows, offsets = fitted.arranged(raw)
    known = rows.drop({*features.label_names, *features.outcomes}, strict=False)
    requests = [known[start:stop] for start, stop in pairwise(offsets.tolist())]
    order = {id_: place for place, id_ in enumerate(stored.ids.tolist())}
    expected = stored.take(np.asarray([order[id_] for id_ in fitted.ids(rows, offsets).tolist()], dtype=np.int64))
    for number, request in enumerate(requests):
        sample = expected.samples(number, number + 1)
        served = fitted.serve(request.select(fitted.columns.names()).to_dicts())
        _compare(fitted, served.features, sample.features)
        if features.grouped and features.where is not None:
            _check_whole_group(fitted, raw, request, sample)
    if requests:
        half = known.height // 2
        stream = list(fitted.apply_batches([known[:half], known[half:]]))
        for served in (fitted.apply(known), concat(stream)):
            _compare(fitted, served.features, expected.features)
    return len(requests)


def _check_whole_group(fitted: FittedFeatures, raw: pl.DataFrame, kept: pl.DataFrame, stored: FeatureTable) -> None:
    """
    Ask for all rows of a group, as a server is asked, and compare the features of those that were stored.

    :param raw: raw rows, numbered
    :param kept: those of a group that ``FeatureSet.where`` keeps
    :param stored: the group
    """
    assert stored.ids is not None, "features are materialised with ids"
    features = fitted.feature_set
    # Without a label, for then ``where`` leaves out nothing.
    whole = fitted.with_ids(raw, stored.ids).drop({*features.label_names, *features.outcomes}, strict=False)
    try:
        served = fitted.apply(whole, keys={_ROW: _ROW})
    except BadDataError:
        return  # as of a row without a key: a server refuses such a request, and answers nothing else about the group
    assert served.keys is not None, "asked for"
    _compare(fitted, served.features[served.keys[_ROW].is_in(kept[_ROW]).to_numpy()], stored.features, whole=True)


def _compare(
    fitted: FittedFeatures, served: npt.NDArray[np.float32], expected: npt.NDArray[np.float32], *, whole: bool = False
) -> None:
    features = fitted.feature_set
    if served.shape != expected.shape:
        fault = f"a server would make {len(served)} rows of {len(expected)}"
    else:
        differs = (served.view(np.uint32) != expected.view(np.uint32)).any(axis=0)
        if not differs.any():
            return
        fault = f"served values of {_names(fitted.feature_names, differs)} differ from the materialised ones"
    group = f", or its own group with .over({', '.join(features.group_by)})" if features.grouped else " alone"
    reason = (
        "rows that FeatureSet.where leaves out of a group are in a request too: leave them out in "
        "ingest.transform, or derive the feature from its own row alone"
        if whole
        else f"a feature must follow from its own row{group}"
    )
    raise BadConfigError(f"{features.line}: {fault}: {reason}")


def _names(names: Sequence[str], chosen: npt.NDArray[np.bool_]) -> str:
    return ", ".join(repr(name) for name, is_chosen in zip(names, chosen, strict=True) if is_chosen)
