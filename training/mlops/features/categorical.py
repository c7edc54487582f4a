"""Transforms of categories: strings, integers and booleans, by their text. A missing category is a null."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from mlops.features.numeric import one_hot
from mlops.features.protocol import Defined, Encoder, FloatArray, State
from mlops.features.running_statistics import Counts, Statistic

Encoding = Literal["one_hot", "id"]
Places = npt.NDArray[np.int64]
MISSING: Final = -1
_FEW: Final = 256
"""Most rows that are looked up one by one: casting to an Enum costs as much for one row as for some hundreds."""
_MAX_ID: Final = 2**24
"""Largest id: a float32 counts up to here without gaps."""


@dataclass(frozen=True, slots=True, init=False)
class Cross:
    """
    Several categories combined into one, missing where one of them is, e.g. ``Vocabulary(Cross("origin", "dest"))``.
    """

    columns: tuple[str, ...]

    def __init__(self, *columns: str) -> None:
        object.__setattr__(self, "columns", columns)


@dataclass(frozen=True, slots=True)
class Categorical(Defined):
    """
    A category, and the treatment of a missing one.

    :param column: a column, or a :class:`Cross` of columns, whose name and values are joined by ``×``
    :param missing: ``error`` refuses missing values; ``indicator`` adds a feature ``<column>_missing``, or, for ids,
        gives them id 0
    :param encoding: ``one_hot``: a feature for each place; ``id``: one feature that counts from 1, for an embedding
    """

    column: str | Cross
    missing: Literal["error", "indicator"] = "error"

    def __post_init__(self) -> None:
        Defined.__post_init__(self)
        if isinstance(self.column, Cross) and len(self.column.columns) < 2:
            raise self.bad_config("a Cross needs at least two columns")

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.column.columns if isinstance(self.column, Cross) else (self.column,)

    @property
    def name(self) -> str:
        return "×".join(self.inputs)

    def check(self, schema: Mapping[str, pl.DataType]) -> None:
        for column in self.inputs:
            dtype = schema[column]
            if not (dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Enum, pl.Null) or dtype.is_integer()):
                raise self.bad_config(
                    f"the column {column!r} is {dtype}; categories are strings, integers or booleans: derive one, or "
                    "use Standardise or Bucketise"
                )

    def measure(self, rows: pl.DataFrame) -> Statistic:
        return Counts.of(self._categories(rows))

    def _categories(self, rows: pl.DataFrame) -> pl.Series:
        if isinstance(self.column, Cross):
            texts = [pl.col(column).cast(pl.String) for column in self.column.columns]
            return rows.select(pl.concat_str(texts, separator="×")).to_series()
        return rows.get_column(self.column)

    def _check_fit(self, statistic: Statistic) -> Counts:
        assert isinstance(statistic, Counts)
        if self.missing == "error" and statistic.num_missing:
            raise self.missing_values(statistic.num_missing, statistic.num_missing + statistic.num_values)
        return statistic

    def _encoder(self, lookup: Lookup, encoding: Encoding, labels: Sequence[str]) -> Encoder:
        """
        Make the encoder that looks up the places of a column's categories.

        :param labels: names of the places if they are one-hot encoded
        """
        names = labels if encoding == "one_hot" else [f"{self.name}_id"]
        indicator = (f"{self.name}_missing",) if self.missing == "indicator" and encoding == "one_hot" else ()

        def write(rows: pl.DataFrame, out: FloatArray) -> None:
            places = lookup.places(self._categories(rows).cast(pl.String))
            missing = places == MISSING
            if self.missing == "error" and missing.any():
                raise self.missing_values(int(missing.sum()), len(places))
            if encoding == "id":
                out[0] = places + 1
            else:
                one_hot(places, out[: len(names)])
                if indicator:
                    out[len(names)] = missing

        return Encoder((*names, *indicator), write, ids=encoding == "id")


@dataclass(frozen=True, slots=True)
class Vocabulary(Categorical):
    """
    Categories seen at least ``min_count`` times in the training split; all others are out of vocabulary.

    :param oov_buckets: places that share the categories out of vocabulary, by a hash (CRC-32) if there are several
    :param encoding: as ids, 0 is missing, then come the places out of vocabulary, then the categories, sorted
    """

    min_count: int = 1
    encoding: Encoding = "one_hot"
    oov_buckets: int = 1

    def __post_init__(self) -> None:
        Categorical.__post_init__(self)
        for name, value in {"min_count": self.min_count, "oov_buckets": self.oov_buckets}.items():
            if value < 1:
                raise self.bad_config(f"{name} must be at least 1, got {value}")

    def fit(self, statistic: Statistic) -> State:
        table = self._check_fit(statistic).table
        # Sorted as what they are: 9 before 10.
        values = table.filter(pl.col("count") >= self.min_count).sort("value")["value"].cast(pl.String).to_list()
        if len(values) + self.oov_buckets >= _MAX_ID:
            raise self.bad_config(
                f"{len(values)} categories, more than float32 can number; raise min_count, or use Hash"
            )
        return {"values": values, "oov_buckets": self.oov_buckets}

    def encoder(self, state: State) -> Encoder:
        values, oov_buckets = state["values"], state["oov_buckets"]
        other = ["<other>"] if oov_buckets == 1 else [f"<other {i}>" for i in range(oov_buckets)]
        lookup = Lookup(values, oov_buckets, known_first=self.encoding == "one_hot")
        return self._encoder(lookup, self.encoding, [f"{self.name}={value}" for value in (*values, *other)])


@dataclass(frozen=True, slots=True)
class Hash(Categorical):
    """A place for each bucket of a hash (CRC-32) of the value's text; nothing is fitted: for unbounded categories."""

    buckets: int = 16
    encoding: Encoding = "one_hot"

    def __post_init__(self) -> None:
        Categorical.__post_init__(self)
        if not 2 <= self.buckets < _MAX_ID:
            raise self.bad_config(f"buckets must be at least 2 and below {_MAX_ID}, got {self.buckets}")

    def fit(self, statistic: Statistic) -> State:
        self._check_fit(statistic)
        return {"buckets": self.buckets}

    def encoder(self, state: State) -> Encoder:
        labels = [f"{self.name}_hash_{i}" for i in range(state["buckets"])]
        return self._encoder(Lookup([], state["buckets"], known_first=True), self.encoding, labels)


class Lookup:
    """
    Lookup of the places of categories: of the known ones by a table, of all others by a hash of their text.

    :param buckets: places that the unknown ones share
    :param known_first: True if the known ones come before those
    """

    def __init__(self, known: Sequence[str], buckets: int, *, known_first: bool) -> None:
        self._known_start, self._other_start = (0, len(known)) if known_first else (buckets, 0)
        self._buckets = buckets
        self._places = {value: place for place, value in enumerate(known)}
        self._enum = pl.Enum(known)

    def places(self, texts: pl.Series) -> Places:
        """Return the ``[N]`` places of categories; ``MISSING`` for null."""
        if len(texts) <= _FEW:
            found = [self._places.get(text, MISSING) for text in texts.to_list()]
            known = np.asarray(found, dtype=np.int64)
        else:
            known = texts.cast(self._enum, strict=False).to_physical().cast(pl.Int64).fill_null(MISSING).to_numpy()
        places = np.where(known == MISSING, self._other_start, known + self._known_start)
        if self._buckets > 1 and (others := np.flatnonzero(known == MISSING)).size:
            places[others] += self._hashes(texts.gather(others))
        if texts.null_count():
            places[texts.is_null().to_numpy()] = MISSING
        return places

    def _hashes(self, texts: pl.Series) -> Places:
        """Return the ``[N]`` hashes of texts, as numbers of buckets; any number for null."""
        if len(texts) <= _FEW:
            return np.asarray([self._hash(text) for text in texts.to_list()], dtype=np.int64)
        distinct = texts.unique().drop_nulls()
        hashes = np.asarray([*map(self._hash, distinct.to_list()), 0], dtype=np.int64)
        codes = texts.cast(pl.Enum(distinct)).to_physical().fill_null(len(distinct))
        return np.take(hashes, codes.to_numpy())

    def _hash(self, text: str | None) -> int:
        return zlib.crc32((text or "").encode()) % self._buckets
