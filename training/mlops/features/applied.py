"""A feature set with the state it was fitted to: raw rows in, model inputs out, for training and serving alike."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from polars.exceptions import PolarsError

from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.engine.dtypes import dtype_of, zone_of
from mlops.data.shards.feature_table import FeatureTable
from mlops.features.derivation import Arranged, Derivation
from mlops.features.feature_set import FeatureSet
from mlops.features.protocol import Encoder, State, described

_BLOCK_ROWS: Final = 16384
"""
Rows encoded at a time by one thread: so few that the arrays between a column and its features stay in the thread's
cache.
"""
_TAKES: Final[Mapping[type[pl.DataType], tuple[type, ...]]] = {
    pl.Boolean: (bool,), pl.String: (str,), pl.Date: (date,), pl.Datetime: (datetime,)
}  # fmt: skip
_MOST_CLASSES_SHOWN: Final = 10
STATE_FORMAT: Final = 2
"""
Version of the state's format, and of the values that each transform makes from it: raised when either changes its
meaning.
"""


class FittedFeatures:
    """
    A feature set with its fitted state: made once, and used for as many rows as there are.

    :raises BadConfigError: if the state belongs to another feature set, or two features have one name
    """

    def __init__(self, feature_set: FeatureSet, state: State) -> None:
        if state.get("format") != STATE_FORMAT:
            raise BadConfigError(
                f"the state of these features has format {state.get('format')}, this release reads {STATE_FORMAT}; "
                "run the features step and train again"
            )
        self.feature_set = feature_set
        self.state = state
        known = {name: dtype_of(text) for name, text in [*state["columns"], *state["keys"]]}
        self._derivation = Derivation.of(feature_set, known)
        self.columns = pl.Schema({name: known[name] for name, _ in state["columns"]})
        """Raw columns that a request must have, with their types."""
        self._encoders = _encoders(feature_set, state)
        self.feature_names = [name for encoder in self._encoders for name in encoder.names]
        ids = [encoder.ids for encoder in self._encoders for _ in encoder.names]
        self.categorical = [place for place, are_ids in enumerate(ids) if are_ids]
        """Positions of the features that are ids of categories."""
        self._dates = [name for name, dtype in self.columns.items() if dtype in (pl.Date, pl.Datetime)]
        self._takes = {name: kinds for name, dtype in self.columns.items() if (kinds := _kinds(dtype))}

    def __reduce__(self) -> tuple[type[FittedFeatures], tuple[FeatureSet, State]]:
        return FittedFeatures, (self.feature_set, self.state)

    def apply(
        self, frame: pl.DataFrame, keys: Mapping[str, str] = MappingProxyType({}), *, request: bool = False
    ) -> FeatureTable:
        """
        Compute model inputs from raw rows; the same for training and serving.

        :param frame: whole groups
        :param keys: raw columns to keep beside the features, by the name that they get
        :param request: True: rows of a request, which have no label, and no order unless they are grouped
        :return: features [N, F]; labels [N] or [N, L], NaN where the frame has no label column; ids, where they are
            known
        :raises BadDataError: naming the feature or label that is missing or not finite
        """
        rows = self._derivation.conform(frame, request=request)
        others = [column for column in keys.values() if column not in rows.columns]
        rows = rows.hstack(frame.select(others)) if others else rows
        arranged = self._derivation.as_asked(rows) if request else self._derivation.arrange(rows)
        return FeatureTable(
            features=self._features(arranged),
            labels=self._labels(arranged.rows),
            offsets=arranged.offsets,
            ids=self.ids(*arranged) if set(self._id_columns) <= set(arranged.rows.columns) else None,
            keys=arranged.rows.select(pl.col(column).alias(name) for name, column in keys.items()) if keys else None,
        )

    def apply_batches(self, frames: Iterable[pl.DataFrame]) -> Iterator[FeatureTable]:
        """
        Compute model inputs for a stream that need not fit into memory: a table for each frame.

        A group may continue from the end of one frame into the next; it is then joined.

        :raises BadDataError: where a group comes again after others: the rows of a group must be together in the stream
        """
        group_by = list(self.feature_set.group_by)
        if not group_by:
            yield from map(self.apply, frames)
            return
        held: pl.DataFrame | None = None
        done: set[int] = set()
        for frame in frames:
            rows = frame if held is None else pl.concat([held, frame])
            last = rows.select(pl.struct(group_by).eq_missing(pl.struct(group_by).last())).to_series()
            held = rows.filter(last)
            yield self._once(rows.filter(~last), done)
        if held is not None:
            yield self._once(held, done)

    def serve(self, request: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> FeatureTable:
        """
        Compute the features of one request: a row, or the rows of a group (of several groups, too).

        :param request: raw columns by name, None where a value is missing; dates also as ISO 8601. Others are ignored
        :return: the rows of a group in the order of ``order_by``, others in that of the request
        :raises BadDataError: naming the column that is not there or has a value of another type
        """
        requests = [request] if isinstance(request, Mapping) else list(request)
        for row in requests:
            if lacking := self.columns.keys() - row.keys():
                raise BadDataError(
                    f"the request has no {', '.join(sorted(lacking))}; give None where a value is not known"
                )
        if any(isinstance(row[name], str) for name in self._dates for row in requests):
            requests = [self._with_dates(row) for row in requests]
        for row in requests:
            self._check_types(row)
        try:
            frame = pl.from_dicts(requests, schema=self.columns) if requests else pl.DataFrame(schema=self.columns)
        except (PolarsError, TypeError, OverflowError, UnicodeError) as error:
            raise BadDataError(f"the request does not have the columns' types: {error}") from error
        arranged = self._derivation.as_asked(frame)
        return FeatureTable(
            features=self._features(arranged), labels=self._no_labels(arranged.rows.height), offsets=arranged.offsets
        )

    def arranged(self, frame: pl.DataFrame) -> Arranged:
        """
        Return the raw rows in exactly the number and order of :meth:`apply`'s rows, and where samples begin and end.
        """
        # Keys as text have another order than the numbers that were fitted.
        return self._derivation.arrange(frame.with_columns(self._derivation.conform(frame).get_columns()))

    def ids(self, rows: pl.DataFrame, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Return the ids of the samples of arranged rows; see :attr:`FeatureTable.ids`."""
        return _hashes(rows[offsets[:-1]] if self.feature_set.grouped else rows, self._id_columns)

    def with_ids(self, frame: pl.DataFrame, ids: npt.NDArray[np.uint64]) -> pl.DataFrame:
        """Return the raw rows of the samples that have one of these ids."""
        return frame.filter(np.isin(_hashes(self._derivation.conform(frame), self._id_columns), ids))

    @property
    def _id_columns(self) -> Sequence[str]:
        """Columns of which equal ones are one sample; without keys all: rows that are alike teach the same."""
        keys = self.feature_set.group_by or self.feature_set.order_by
        return keys or [*self._derivation.columns, *self.feature_set.label_names]

    def _once(self, frame: pl.DataFrame, done: set[int]) -> FeatureTable:
        table = self.apply(frame)
        ids = set(_hashes(frame, self._id_columns).tolist())
        if ids & done:
            raise BadDataError(
                f"a group of equal {', '.join(self.feature_set.group_by)} comes again after others; "
                "sort the stream by group_by"
            )
        done |= ids
        return table

    def _features(self, arranged: Arranged) -> npt.NDArray[np.float32]:
        rows = self._derivation.derive(arranged.rows)
        features = np.empty((rows.height, len(self.feature_names)), dtype=np.float32)
        blocks = range(0, rows.height, _BLOCK_ROWS)
        if len(blocks) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                list(threads.map(lambda first: self._encode(rows, features, first), blocks))
        else:
            self._encode(rows, features, 0)
        return features

    def _encode(self, rows: pl.DataFrame, features: npt.NDArray[np.float32], first: int) -> None:
        """Fill the block of rows that starts at ``first``."""
        part, block = rows[first : first + _BLOCK_ROWS], features[first : first + _BLOCK_ROWS]
        start = 0
        for encoder in self._encoders:
            stop = start + len(encoder.names)
            encoder.write(part, block[:, start:stop].T)
            start = stop
        if not (finite := np.isfinite(block)).all():
            row, column = np.argwhere(~finite)[0]
            count = len(block) - int(finite[:, column].sum())
            raise BadDataError(
                f"feature {self.feature_names[column]!r} is {block[row, column]} in {count} of {len(block)} rows; "
                "check how it is derived"
            )

    def _labels(self, rows: pl.DataFrame) -> npt.NDArray[np.float32]:
        names = self.feature_set.label_names
        if names[0] not in rows.columns:
            return self._no_labels(rows.height)
        if self.feature_set.several_labels:
            return np.stack([self._numbers(rows.get_column(name)) for name in names], axis=1)
        label = rows.get_column(names[0])
        return self._numbers_of_classes(label) if self.feature_set.classes else self._numbers(label)

    def _no_labels(self, num_rows: int) -> npt.NDArray[np.float32]:
        names = self.feature_set.label_names
        shape = (num_rows, len(names)) if self.feature_set.several_labels else num_rows
        return np.full(shape, np.nan, dtype=np.float32)

    def _numbers(self, label: pl.Series) -> npt.NDArray[np.float32]:
        name = label.name
        if not (label.dtype.is_numeric() or label.dtype == pl.Boolean):
            line = self.feature_set.line.argument("label")
            fix = "make one of it in ingest.transform"
            if label.dtype in (pl.String, pl.Categorical, pl.Enum) and not self.feature_set.several_labels:
                fix = f"say which values are classes: classes={_values(label)}"
            raise BadConfigError(f"{line}: label {name!r} is {label.dtype}, not a number; {fix}")
        if count := label.null_count():
            raise BadDataError(f"label {name!r} is missing in {count} rows; leave them out with FeatureSet.where")
        labels = label.cast(pl.Float32).to_numpy()
        if not np.isfinite(labels).all():
            raise BadDataError(f"label {name!r} has values that are not finite; leave them out with FeatureSet.where")
        return labels

    def _numbers_of_classes(self, label: pl.Series) -> npt.NDArray[np.float32]:
        names, column = self.feature_set.class_names, label.name
        if count := label.null_count():
            raise BadDataError(f"label {column!r} is missing in {count} rows; leave them out with FeatureSet.where")
        found = label.cast(pl.String).replace_strict(names, range(len(names)), default=None, return_dtype=pl.Float32)
        if count := found.null_count():
            other = label.filter(found.is_null())[0]
            line = self.feature_set.line.argument("classes")
            raise BadDataError(
                f"{line}: label {column!r} is {other!r} in the first of {count} rows, which is none of the classes "
                f"{', '.join(names)}; add it, or leave such rows out with FeatureSet.where"
            )
        return found.to_numpy()

    def _with_dates(self, row: Mapping[str, Any]) -> dict[str, Any]:
        parsed = dict(row)
        for name in self._dates:
            if isinstance(text := row[name], str):
                kind = date if self.columns[name] == pl.Date else datetime
                try:
                    parsed[name] = kind.fromisoformat(text)
                except ValueError as error:
                    raise BadDataError(f"the request's {name!r} is {text!r}, not ISO 8601: {error}") from error
        return parsed

    def _check_types(self, row: Mapping[str, Any]) -> None:
        """Refuse a value that Polars would change: 5.7 to 5, or a time without an offset to one in UTC."""
        for name, kinds in self._takes.items():
            value = row[name]
            kind = type(value.item() if isinstance(value, np.generic) else value)
            if value is None or (kind in kinds and kind is not datetime):
                continue
            if kind is float and int in kinds and value.is_integer():
                continue  # JSON has but one kind of number
            said = f"of type {kind.__name__}"
            if kind in kinds:
                if (value.tzinfo is None) == (zone_of(self.columns[name]) is None):
                    continue
                said = "without an offset from UTC" if value.tzinfo is None else "with an offset from UTC"
            raise BadDataError(f"the request's {name!r} is {value!r}, {said}; the column is {self.columns[name]}")


def _values(label: pl.Series) -> str:
    """Return the values of a label as a feature set names them; of many a few."""
    values = label.drop_nulls().unique().sort().cast(pl.String)
    shown = ", ".join(f'"{value}"' for value in values[:_MOST_CLASSES_SHOWN])
    return f"({shown}{', ...' if len(values) > _MOST_CLASSES_SHOWN else ''})"


def _kinds(dtype: pl.DataType) -> tuple[type, ...]:
    """Return Python's types for a column's; none for types that are left to Polars."""
    if dtype.is_integer():
        return (int,)
    return (float, int) if dtype.is_float() else _TAKES.get(dtype.base_type(), ())


def _encoders(features: FeatureSet, state: State) -> list[Encoder]:
    encoders = []
    for transform, fitted in zip(features.transforms, state["transforms"], strict=True):
        if (fitted["transform"], fitted["inputs"]) != (type(transform).__name__, list(transform.inputs)):
            raise BadConfigError(
                f"{described(transform)}: the state was fitted by {fitted['transform']} {fitted['inputs']}"
            )
        encoders.append(transform.encoder(fitted))
    counts = Counter(name for encoder in encoders for name in encoder.names)
    for transform, encoder in zip(reversed(features.transforms), reversed(encoders), strict=True):
        if twice := [name for name in encoder.names if counts[name] > 1]:
            raise BadConfigError(
                f"{described(transform)}: there is already a feature {twice[0]!r}; derive a second column under its "
                "own name"
            )
    return encoders


def _hashes(rows: pl.DataFrame, columns: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return ``[N]`` hashes, the same for equal values with this version of Polars."""
    bits = rows.select(pl.struct(columns).hash(seed=0)).to_series().to_numpy().copy()
    # Shards follow from the upper bits: spread what the hash leaves (splitmix64's last steps).
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    return bits
