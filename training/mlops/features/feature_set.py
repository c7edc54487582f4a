"""
Feature sets: the one definition of a pipeline's features, for training and for serving.

``apply`` is the only code path from raw rows to model inputs; what is served is what was trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import narwhals as nw
import polars as pl

from mlops.contract.step import BadConfigError
from mlops.data.engine import Table
from mlops.data.feature_table import FeatureTable
from mlops.features.applied import FittedFeatures
from mlops.features.batches import batches_of
from mlops.features.derivation import Derivation
from mlops.features.fitting import fit
from mlops.features.protocol import State, Transform, described
from mlops.features.source_line import SourceLine, line_of_caller


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
    """New columns, row by row (or group by group, with ``.over``), in order; a later one may use an earlier one."""
    outcomes: Sequence[str] = ()
    """Columns known only afterwards. They are removed, with the label, before any feature is made."""
    where: nw.Expr | None = None
    """Rows to learn and measure on; may use the label and the outcomes. Rows without a label (in serving) all stay."""
    group_by: Sequence[str] = ()
    """Columns that make a sample of several rows (a query); none: every row is a sample."""
    min_group_size: int = 1
    """Smaller groups are left out, of served rows too: there is nothing to rank."""
    entity: Sequence[str] = ()
    """Columns by which the feature store finds a row; they are kept in the shards, beside the features."""
    line: SourceLine = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "line", line_of_caller())
        if not self.transforms:
            raise BadConfigError(f"{self.line}: a FeatureSet needs at least one transform")
        if not self.order_by:
            raise BadConfigError(
                f"{self.line}: FeatureSet.order_by is empty; name columns that give the rows a fixed order"
            )
        for transform in self.transforms:
            for column in {self.label, *self.outcomes} & set(transform.inputs):
                raise BadConfigError(
                    f"{described(transform)}: {column!r} is the label or an outcome, unknown when the model is asked"
                )

    @property
    def grouped(self) -> bool:
        return bool(self.group_by)

    def fit(self, table: Table | pl.DataFrame) -> State:
        """
        Learn the transforms' state from the training split, batch by batch, on either engine.

        :return: JSON: ``{"format": 1, "columns": [...], "transforms": [...]}``, one state for each transform
        :raises BadConfigError: with the line of a definition that does not fit the table
        :raises BadDataError: naming the column whose values do not fit its transform
        """
        with batches_of(table, self.group_by) as batches:
            return fit(self, batches)

    def apply(self, frame: pl.DataFrame, state: State) -> FeatureTable:
        """Raw rows to model inputs; see :meth:`FittedFeatures.apply`."""
        return FittedFeatures(self, state).apply(frame)

    def apply_batches(self, frames: Iterable[pl.DataFrame], state: State) -> Iterator[FeatureTable]:
        """A stream of raw rows; see :meth:`FittedFeatures.apply_batches`."""
        return FittedFeatures(self, state).apply_batches(frames)

    def arrange(self, frame: pl.DataFrame) -> pl.DataFrame:
        """
        The raw rows in exactly the number and order of ``apply``'s rows.

        :raises BadDataError: where a key is null, or the order is not decided
        """
        return Derivation.of(self, frame.schema).arrange(frame).rows
