"""
Derive the columns that transforms read from raw rows: a feature set's expressions, compiled for a table's columns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import narwhals as nw
import numpy as np
import numpy.typing as npt
import polars as pl
from narwhals.exceptions import NarwhalsError
from polars.exceptions import PolarsError

from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.engine.dtypes import zone_of
from mlops.features.feature_set import FeatureSet
from mlops.features.protocol import described
from mlops.features.source_line import no_column

_TEXTS = (pl.String, pl.Categorical, pl.Enum)
# How Polars prints a selection of columns by type, by a pattern, or of all.
_SELECTOR = re.compile(r'(?<!["\w])cs\.')


class Arranged(NamedTuple):
    """Raw rows in the order of the model's inputs."""

    rows: pl.DataFrame
    offsets: npt.NDArray[np.int64]
    """``[S + 1]``; sample i is rows ``offsets[i]:offsets[i + 1]``."""


class _Compiled(NamedTuple):
    expr: pl.Expr
    reads: frozenset[str]


class _Part(NamedTuple):
    """A part of a definition; as text, for a message, it has the line of the definition."""

    features: FeatureSet
    argument: str
    key: str | None = None

    def __str__(self) -> str:
        name = f"derived column {self.key!r}" if self.key else f"FeatureSet.{self.argument}"
        return f"{self.features.line.argument(self.argument, self.key)}: {name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Derivation:
    """
    A feature set's expressions, compiled for tables of certain columns and types and used for any number of tables.

    Polars runs the expressions wherever the rows are, in this process or in an executor of Spark: the narwhals
    expressions of a recipe are turned into Polars' once, and those that do not use each other's results run together.
    """

    features: FeatureSet
    columns: pl.Schema
    """The raw columns that features are made of: those of a request, and the keys."""
    keys: frozenset[str]
    """Of these, the ones that say which row it is and nothing about it: a request need not have them."""
    stages: tuple[tuple[pl.Expr, ...], ...]
    where: _Compiled | None

    @classmethod
    def of(cls, features: FeatureSet, schema: Mapping[str, pl.DataType], *, labelled: bool = False) -> Derivation:
        """
        Compile a feature set's expressions.

        :param schema: raw columns; label and outcomes may be among them
        :param labelled: the label must be, for it is to be learnt
        :raises BadConfigError: with a line for each definition that does not fit these columns
        """
        unknown = {*features.label_names, *features.outcomes}
        # The label and outcomes go first: a feature that uses them fails here, and not as a leak in production.
        known = {name: dtype for name, dtype in schema.items() if name not in unknown}
        complaints: list[str] = []
        if labelled:
            lacking = [name for name in features.label_names if name not in schema]
            complaints += [_lacking(_Part(features, "label"), name, schema, frozenset()) for name in lacking]
        for argument in ("group_by", "order_by", "entity"):
            for column in getattr(features, argument):
                if column not in known:
                    complaints.append(_lacking(_Part(features, argument), column, known, unknown))
        where = None
        if features.where is not None:
            with _noted(complaints):
                where = _compile(_Part(features, "where"), features.where)
                if set(features.label_names) <= schema.keys():
                    _check(_Part(features, "where"), where, pl.DataFrame(schema=schema), frozenset())
        stages, derived, raw, failed = _stages(features, pl.DataFrame(schema=known), unknown, complaints)
        for transform in features.transforms:
            lacking = [column for column in transform.inputs if column not in derived]
            for column in lacking:
                if column not in failed:
                    complaints.append(_lacking(described(transform), column, derived, unknown))
            if not lacking:
                with _noted(complaints):
                    transform.check(derived)
            raw |= set(transform.inputs) - set(features.derived)
        if complaints:
            raise BadConfigError("\n".join(complaints))
        # The rows of a group are served in an order, those of a table are not.
        raw |= {*features.group_by, *features.order_by} if features.grouped else set()
        keys = frozenset({*features.order_by, *features.entity} - raw)
        columns = pl.Schema({name: dtype for name, dtype in known.items() if name in raw | keys})
        return cls(features=features, columns=columns, keys=keys, stages=stages, where=where)

    def conform(self, frame: pl.DataFrame, *, request: bool = False) -> pl.DataFrame:
        """
        Return only the columns that are needed, in the types that the features were fitted to.

        :param request: True: a request's rows, which need no keys
        :raises BadDataError: naming the column that is not there, or does not hold values of its type
        """
        types = {name: dtype for name, dtype in self.columns.items() if not (request and name in self.keys)}
        wanted = list(types)
        if self._labelled(frame) and not request:
            wanted += {*self.features.label_names, *(self.where.reads if self.where else ())} - set(wanted)
        if frame.columns != wanted:
            if lacking := [column for column in wanted if column not in frame.columns]:
                raise BadDataError(f"features are made of {lacking[0]!r}: {no_column(lacking[0], frame.columns)}")
            frame = frame.select(wanted)
        for column, dtype in types.items():
            if (given := frame.get_column(column).dtype) != dtype:
                if not _same_kind(given, dtype) and frame.get_column(column).null_count() < frame.height:
                    raise BadDataError(
                        f"column {column!r} does not hold {dtype}, to which these features were fitted: it is {given}; "
                        "give it its type in ingest.transform, or by `types` of its source"
                    )
                try:
                    cast = frame.with_columns(pl.col(column).cast(dtype))
                except PolarsError as error:
                    raise BadDataError(f"column {column!r} does not hold {dtype}: {_first_line(error)}") from error
                if lost := _lost(frame.get_column(column), cast.get_column(column)):
                    raise BadDataError(f"column {column!r} does not hold {dtype}: {lost}")
                frame = cast
        return frame

    def arrange(self, frame: pl.DataFrame) -> Arranged:
        """
        Return the rows to make features of, sorted, groups together; all columns stay.

        :raises BadDataError: where a key is null, or the order is not decided
        """
        features = self.features
        keys = [*features.group_by, *features.order_by]
        if self.where is not None and self._labelled(frame):
            frame = frame.filter(self.where.expr)
        for key in keys:
            if frame.get_column(key).null_count():
                raise BadDataError(
                    f"column {key!r} of group_by or order_by has missing values; drop them in the dataset"
                )
        if frame.height > 1 and keys:
            frame = frame.sort(keys)
        offsets = self._offsets(frame, keys)
        sizes = np.diff(offsets)
        if (small := sizes < features.min_group_size).any():
            frame = frame.filter(np.repeat(~small, sizes))
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[~small])])
        return Arranged(frame, offsets)

    def as_asked(self, frame: pl.DataFrame) -> Arranged:
        """
        Return the rows of a request: those of groups as :meth:`arrange` does, others as they are, for each is answered
        by itself.

        :raises BadDataError: as :meth:`arrange` does
        """
        if self.features.grouped:
            return self.arrange(frame)
        return Arranged(frame, np.arange(frame.height + 1, dtype=np.int64))

    def _labelled(self, frame: pl.DataFrame) -> bool:
        return not set(self.features.label_names).isdisjoint(frame.columns)

    def derive(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add the derived columns to arranged rows, and drop the label and outcomes."""
        if unknown := {*self.features.label_names, *self.features.outcomes}.intersection(rows.columns):
            rows = rows.drop(unknown)
        for stage in self.stages:
            try:
                rows = rows.with_columns(stage)
            except PolarsError as error:
                raise BadDataError(f"{self._failing(rows, stage)}: {_first_line(error)}") from error
        return rows

    def _failing(self, rows: pl.DataFrame, stage: Iterable[pl.Expr]) -> _Part:
        """Return which of the expressions cannot be run on these rows."""
        for expr in stage:
            try:
                rows.select(expr)
            except PolarsError:
                return _Part(self.features, "derived", expr.meta.output_name())
        return _Part(self.features, "derived")

    def _offsets(self, rows: pl.DataFrame, keys: list[str]) -> npt.NDArray[np.int64]:
        if rows.height <= 1 or not keys:
            return np.arange(rows.height + 1, dtype=np.int64)
        # The first row has nothing before it, and no key is null: it always starts a group.
        same = {key: pl.col(key).eq_missing(pl.col(key).shift(1)) for key in keys}
        grouped = [same[key] for key in self.features.group_by] or [pl.lit(False)]
        table = rows.select(within=pl.all_horizontal(grouped), tied=pl.all_horizontal(same.values()).any())
        if table["tied"][0]:
            raise BadDataError(f"rows with equal {', '.join(keys)}: the order is not decided; add a column to order_by")
        if not self.features.group_by:
            return np.arange(rows.height + 1, dtype=np.int64)
        return np.append(np.flatnonzero(~table["within"].to_numpy()), rows.height).astype(np.int64)


def _same_kind(given: pl.DataType, dtype: pl.DataType) -> bool:
    """
    Tell whether a cast, which fails on what it cannot read, keeps the meaning of each value. A number as text, or as an
    instant, has another one; so has a category as a number, and a time without an offset as one with it.
    """
    if dtype in _TEXTS:
        return given in _TEXTS
    if dtype.is_numeric():
        return given.is_numeric() or given in (pl.Boolean, pl.String)
    if dtype.is_nested():
        return given.is_nested()
    if {given.base_type(), dtype.base_type()} <= {pl.Date, pl.Datetime}:
        return (zone_of(given) is None) == (zone_of(dtype) is None)
    return given == dtype.base_type()


def _lost(given: pl.Series, cast: pl.Series) -> str | None:
    """Say what a value has that its cast has not; Polars cuts it off without a word. None where nothing is lost."""
    if cast.dtype.is_integer() and (given.dtype.is_float() or given.dtype.is_decimal()):
        said = "is no whole number"
    elif cast.dtype == pl.Date and given.dtype == pl.Datetime:
        said = "has a time of day"
    else:
        return None
    cut = given.filter(cast.cast(given.dtype) != given)
    return f"{cut[0]} {said}" if len(cut) else None


def _stages(
    features: FeatureSet, rows: pl.DataFrame, unknown: set[str], complaints: list[str]
) -> tuple[tuple[tuple[pl.Expr, ...], ...], pl.Schema, set[str], set[str]]:
    """
    Compile the derived columns into stages that run one after the other.

    :param rows: an empty table with the raw columns
    :param complaints: takes a line for each column that cannot be derived
    :return: the derived columns in as few stages as possible, all columns after them, the raw columns that were read,
        and the columns that cannot be derived
    """
    stages: list[dict[str, pl.Expr]] = [{}]
    raw: set[str] = set()
    seen: set[str] = set()
    failed: set[str] = set()
    for name, expr in features.derived.items():
        part = _Part(features, "derived", name)
        try:
            compiled = _compile(part, expr)
            if compiled.reads & failed:
                failed.add(name)  # for a reason that was told
                continue
            _check(part, compiled, rows, unknown)
        except BadConfigError as error:
            complaints.append(str(error))
            failed.add(name)
            continue
        rows = rows.with_columns(compiled.expr.alias(name))
        raw |= compiled.reads - seen
        seen.add(name)
        if stages[-1].keys() & {name, *compiled.reads}:
            stages.append({})
        stages[-1][name] = compiled.expr.alias(name)
    return tuple(tuple(stage.values()) for stage in stages if stage), rows.schema, raw, failed


def _compile(part: _Part, expr: nw.Expr) -> _Compiled:
    # narwhals has no public way to a backend's expression; its version is pinned, and tests hold this.
    namespace = nw.from_native(pl.DataFrame())._compliant_frame.__narwhals_namespace__()
    try:
        native: pl.Expr = expr._to_compliant_expr(namespace).native  # type: ignore[attr-defined]
    except NarwhalsError as error:
        raise BadConfigError(f"{part}: {_first_line(error)}") from error
    if _SELECTOR.search(str(native)):
        raise BadConfigError(
            f"{part} takes columns by a pattern or several at once, so that a new column could change it; "
            "name each in a nw.col of its own"
        )
    return _Compiled(native, frozenset(native.meta.root_names()))


def _check(part: _Part, compiled: _Compiled, rows: pl.DataFrame, unknown: Collection[str]) -> None:
    """Check an expression by running it on an empty table."""
    if lacking := sorted(compiled.reads - set(rows.columns)):
        raise BadConfigError("\n".join(_lacking(part, column, rows.columns, unknown) for column in lacking))
    try:
        rows.select(compiled.expr)
    except PolarsError as error:
        raise BadConfigError(f"{part}: {_first_line(error)}") from error


def _lacking(part: object, column: str, columns: Iterable[str], unknown: Collection[str]) -> str:
    if column in unknown:
        return f"{part}: {column!r} is the label or an outcome, unknown when the model is asked"
    return f"{part}: {no_column(column, columns)}"


@contextmanager
def _noted(complaints: list[str]) -> Iterator[None]:
    """Go on after a mistake: all of them are told at once."""
    try:
        yield
    except BadConfigError as error:
        complaints.append(str(error))


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
