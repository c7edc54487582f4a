"""
Feature sets: the one definition of a pipeline's features, for training and for serving.

``apply`` is the only code path from raw rows to model inputs; what is served is what was trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.exceptions import NarwhalsError

from mlops_provider.step import BadConfigError, BadDataError
from training.data.shards import FeatureTable
from training.features.transforms import State, Transform

GROUP_SIZE = "__group_size"


@dataclass(frozen=True, kw_only=True)
class FeatureSet:
    """
    What a data scientist writes as ``FEATURES``.

    Nothing is fitted here: ``fit`` returns state, ``apply`` takes it.
    """

    transforms: Sequence[Transform]
    """In the order of the model's inputs."""
    label: str
    """Numeric column; rows that are served do not have it."""
    order_by: Sequence[str]
    """Columns that put the rows (of a group) in an order; with ``group_by`` they tell every two rows apart."""
    derived: Mapping[str, nw.Expr] = field(default_factory=dict)
    """New columns, row by row, in order; a later one may use an earlier one."""
    outcomes: Sequence[str] = ()
    """Columns known only afterwards. They are removed, with the label, before any feature is made."""
    where: nw.Expr | None = None
    """Rows to learn and measure on; may use the label and the outcomes. Rows without a label (in serving) all stay."""
    group_by: Sequence[str] = ()
    """Columns that make a sample of several rows (a query); none: every row is a sample."""
    min_group_size: int = 1
    """Smaller groups are left out, of served rows too: there is nothing to rank."""

    def __post_init__(self) -> None:
        if not self.transforms:
            raise BadConfigError("a FeatureSet needs at least one transform")
        if not self.order_by:
            raise BadConfigError("FeatureSet.order_by is empty; name columns that give the rows a fixed order")
        for transform in self.transforms:
            if transform.column in (self.label, *self.outcomes):
                raise BadConfigError(
                    f"{type(transform).__name__}({transform.column!r}): the column is the label or an outcome, "
                    "unknown when the model is asked"
                )

    @property
    def grouped(self) -> bool:
        return bool(self.group_by)

    def arrange(self, frame: pl.DataFrame) -> pl.DataFrame:
        """
        The raw rows in exactly the number and order of ``apply``'s rows.

        :raises BadConfigError: where a column that the definition names is not there
        :raises BadDataError: where a key is null, or the order is not decided
        """
        keys = [*self.group_by, *self.order_by]
        self._require(frame, keys, "group_by and order_by")
        rows = nw.from_native(frame, eager_only=True)
        if self.where is not None and self.label in frame.columns:
            rows = _attempt("where", lambda: rows.filter(self.where))
        if null := [key for key in keys if rows[key].null_count()]:
            raise BadDataError(
                f"column {null[0]!r} of group_by or order_by has missing values; drop them in the dataset"
            )
        if self.min_group_size > 1:
            rows = (
                rows.with_columns(nw.len().over(*self.group_by).alias(GROUP_SIZE))
                .filter(nw.col(GROUP_SIZE) >= self.min_group_size)
                .drop(GROUP_SIZE)
            )
        rows = rows.sort(*keys)
        if rows.select(keys).is_duplicated().any():
            raise BadDataError(f"rows with equal {', '.join(keys)}: the order is not decided; add a column to order_by")
        return rows.to_native()

    def fit(self, frame: pl.DataFrame) -> State:
        """
        Learn the transforms' state from the training split.

        :return: JSON: ``{"transforms": [...]}``, one state for each transform
        :raises BadConfigError: naming the column that a definition has wrong
        :raises BadDataError: naming the column whose values do not fit its transform
        """
        rows = self._derive(self.arrange(frame))
        if not len(rows):
            raise BadDataError("the training split has no rows to fit on; check FeatureSet.where and min_group_size")
        state = {"transforms": [_attempt(repr(t), lambda t=t: t.fit(rows)) for t in self.transforms]}
        self.feature_names(state, rows)
        return state

    def feature_names(self, state: State, rows: nw.DataFrame[Any]) -> list[str]:
        names = [name for columns in self._columns(rows, state) for name in columns]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise BadConfigError(
                f"two transforms make a feature {twice[0]!r}; derive a second column under its own name"
            )
        return names

    def names(self, frame: pl.DataFrame, state: State) -> list[str]:
        """Names of the features, in the order of the model's inputs."""
        return self.feature_names(state, self._derive(frame))

    def apply(self, frame: pl.DataFrame, state: State) -> FeatureTable:
        """
        Raw rows to model inputs; the same for training and serving.

        :return: features [N, F]; labels [N], NaN where the frame has no label column
        :raises BadDataError: naming the feature or label that is missing or not finite
        """
        arranged = self.arrange(frame)
        rows = self._derive(arranged)
        columns = {name: expr for part in self._columns(rows, state) for name, expr in part.items()}
        table = _attempt(
            "transforms", lambda: rows.select(expr.cast(nw.Float32).alias(name) for name, expr in columns.items())
        )
        features = np.ascontiguousarray(table.to_numpy(), dtype=np.float32)
        if (bad := ~np.isfinite(features)).any():
            row, column = np.argwhere(bad)[0]
            raise BadDataError(
                f"feature {list(columns)[column]!r} is {features[row, column]} in {int(bad[:, column].sum())} of "
                f"{len(features)} rows; check how it is derived"
            )
        return FeatureTable(features=features, labels=self._labels(arranged), offsets=self._offsets(arranged))

    def _columns(self, rows: nw.DataFrame[Any], state: State) -> list[dict[str, nw.Expr]]:
        return [t.columns(rows, s) for t, s in zip(self.transforms, state["transforms"], strict=True)]

    def _derive(self, frame: pl.DataFrame) -> nw.DataFrame[Any]:
        # The label and outcomes go first: a feature that uses them fails here, and not as a leak in production.
        known = [column for column in frame.columns if column not in (self.label, *self.outcomes)]
        rows = nw.from_native(frame.select(known), eager_only=True)
        for name, expr in self.derived.items():
            rows = _attempt(f"derived column {name!r}", lambda rows=rows, name=name, expr=expr: rows.with_columns(
                expr.alias(name)
            ))  # fmt: skip
        self._require(rows.to_native(), [transform.column for transform in self.transforms], "transforms")
        return rows

    def _require(self, frame: pl.DataFrame, columns: Sequence[str], where: str) -> None:
        if missing := [column for column in columns if column not in frame.columns]:
            raise BadConfigError(
                f"FeatureSet.{where}: there is no column {missing[0]!r}; there are {', '.join(frame.columns)}"
            )

    def _labels(self, arranged: pl.DataFrame) -> np.ndarray[Any, np.dtype[np.float32]]:
        if self.label not in arranged.columns:
            return np.full(arranged.height, np.nan, dtype=np.float32)
        if not (arranged.schema[self.label].is_numeric() or arranged.schema[self.label] == pl.Boolean):
            raise BadConfigError(f"label {self.label!r} is {arranged.schema[self.label]}, not a number")
        if count := arranged[self.label].null_count():
            raise BadDataError(f"label {self.label!r} is missing in {count} rows; leave them out with FeatureSet.where")
        labels = arranged[self.label].cast(pl.Float32).to_numpy()
        if not np.isfinite(labels).all():
            raise BadDataError(
                f"label {self.label!r} has values that are not finite; leave them out with FeatureSet.where"
            )
        return labels

    def _offsets(self, arranged: pl.DataFrame) -> np.ndarray[Any, np.dtype[np.int64]]:
        if not self.group_by:
            return np.arange(arranged.height + 1, dtype=np.int64)
        starts = arranged.select(
            pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift(1)) for key in self.group_by)
        ).to_series()
        first_rows = np.flatnonzero(starts.to_numpy())
        # The first row has nothing before it, and no key is null: it always starts a group.
        return np.append(first_rows, arranged.height).astype(np.int64)


def _attempt(what: str, action: Any) -> Any:
    """Run part of a definition; where it does not fit the data, say which part it is."""
    try:
        return action()
    except NarwhalsError as error:
        raise BadConfigError(f"FeatureSet: {what}: {str(error).strip()}") from error
