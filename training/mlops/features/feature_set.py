"""
Feature sets: the one definition of a pipeline's features, for training and for serving.

It is a declaration: :func:`mlops.features.fitting.fit` learns its state from the training split, and
:class:`mlops.features.applied.FittedFeatures` is the only code path from raw rows to model inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import narwhals as nw

from mlops.contract.step import BadConfigError
from mlops.features.protocol import Transform, described
from mlops.features.source_line import SourceLine, line_of_caller


@dataclass(frozen=True, kw_only=True)
class FeatureSet:
    """The definition of features that a data scientist writes as ``FEATURES``."""

    transforms: Sequence[Transform]
    """Transforms in the order of the model's inputs."""
    label: str | Sequence[str]
    """
    Column to be predicted, of numbers or, with ``classes``, of any values; rows that are served do not have it. Or
    several columns of 0 and 1, each of them a label that a row has or has not.
    """
    order_by: Sequence[str] = ()
    """
    Columns that put the rows of a group in an order, and tell every two of them apart. Without groups they say which
    row a sample is, if it has a name: they must then tell every two rows apart, and a request need not have them.
    """
    classes: Sequence[object] = ()
    """
    Values of the label, each a class: the first is learnt as 0, the second as 1, and so on. A label of text needs them.
    """
    derived: Mapping[str, nw.Expr] = field(default_factory=dict)
    """New columns, row by row (or group by group, with ``.over``), in order; a later one may use an earlier one."""
    outcomes: Sequence[str] = ()
    """Columns known only afterwards. They are removed, with the label, before any feature is made."""
    where: nw.Expr | None = None
    """
    Condition on rows to learn and measure on; may use the label and the outcomes. Rows without a label (in serving) all
    stay: with ``group_by``, a feature of the group (``.over``) that would change by them is refused.
    """
    group_by: Sequence[str] = ()
    """Columns that group rows into a sample (a query); empty: every row is a sample."""
    min_group_size: int = 1
    """Fewest rows of a group. Smaller groups are left out, of served rows too: there is nothing to rank."""
    entity: Sequence[str] = ()
    """Columns by which the feature store finds a row; they are kept in the shards, beside the features."""
    line: SourceLine = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "line", line_of_caller())
        if not self.transforms:
            raise BadConfigError(f"{self.line}: a FeatureSet needs at least one transform")
        if not self.order_by and (needing := "group_by" if self.group_by else "entity" if self.entity else None):
            raise BadConfigError(
                f"{self.line}: FeatureSet.order_by is empty, and with {needing} there must be one: name columns that "
                "put the rows of equal ones in an order"
            )
        names = self.label_names
        if not isinstance(self.label, str) and (len(names) < 2 or len(set(names)) < len(names)):
            raise BadConfigError(
                f"{self.line.argument('label')}: FeatureSet.label must be a column, or a list of at least two "
                f"different ones, got {names}"
            )
        if self.several_labels and self.classes:
            raise BadConfigError(
                f"{self.line.argument('classes')}: FeatureSet.classes are the values of one label, and label names "
                f"{len(names)} columns; make each a column of 0 and 1"
            )
        if len(set(self.class_names)) < len(self.classes) or len(self.classes) == 1:
            raise BadConfigError(
                f"{self.line}: FeatureSet.classes must be at least two different values of the label, got "
                f"{list(self.classes)}"
            )
        for transform in self.transforms:
            for column in {*names, *self.outcomes} & set(transform.inputs):
                raise BadConfigError(
                    f"{described(transform)}: {column!r} is the label or an outcome, unknown when the model is asked"
                )

    @property
    def label_names(self) -> list[str]:
        """The columns of the label, of which there may be one."""
        return [self.label] if isinstance(self.label, str) else list(self.label)

    @property
    def several_labels(self) -> bool:
        """True: labels are ``[N, L]``, not ``[N]``."""
        return not isinstance(self.label, str)

    @property
    def class_names(self) -> list[str]:
        """The values of the label as text; empty where ``classes`` are not given."""
        return [str(value).lower() if isinstance(value, bool) else str(value) for value in self.classes]

    @property
    def grouped(self) -> bool:
        return bool(self.group_by)
