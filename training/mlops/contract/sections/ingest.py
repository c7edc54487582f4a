"""The section ``ingest``: what is read, and which rows are held out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from mlops.contract.section import Name, Section, Transform
from mlops.contract.sources import AnySource


class TimeSplit(Section):
    """By time: the newest days for test, those before for validation, the rest for training."""

    validation_days: int = Field(default=3, ge=1)
    """Days before the test days; the best epoch is chosen on them."""
    test_days: int = Field(default=3, ge=1)
    """The newest days; candidate and champion are compared on them."""


class KeySplit(Section):
    """By a hash of an entity's key: all rows of a key are in one split, tonight and in every later night."""

    key: str
    """Column of the resulting table, text or whole numbers without nulls, e.g. ``user_id``."""
    validation: float = Field(default=0.1, gt=0, lt=1)
    """Share of the keys on which the best epoch is chosen."""
    test: float = Field(default=0.1, gt=0, lt=1)
    """Share of the keys on which candidate and champion are compared."""

    @model_validator(mode="after")
    def _something_to_train_on(self) -> KeySplit:
        if self.validation + self.test >= 1:
            raise ValueError("content with all keys: make validation and test add up to less than 1")
        return self


def _kind_of_split(value: object) -> str:
    by_key = isinstance(value, KeySplit) or (isinstance(value, Mapping) and "key" in value)
    return "(KeySplit)" if by_key else "(TimeSplit)"


Split = Annotated[
    Annotated[TimeSplit, Tag("(TimeSplit)")] | Annotated[KeySplit, Tag("(KeySplit)")], Discriminator(_kind_of_split)
]


class Ingest(Section):
    """Read the sources as they were known at the end of the data interval; store an immutable snapshot."""

    sources: dict[Name, AnySource] = Field(min_length=1)
    transform: Transform | None = None
    """``transform(sources: dict[str, narwhals.LazyFrame]) -> narwhals.LazyFrame``, or a file with one SELECT over the
    sources' names; not needed for a single source."""
    event_time: str
    """Column of the resulting table, an instant; the snapshot has one partition per calendar day of it."""
    window_days: int = Field(default=30, ge=1)
    """Calendar days before the interval's end that the snapshot holds."""
    split: Split = Field(default=TimeSplit(), validate_default=True)
    """Which rows are held out: the newest days, or the keys of some entities."""
    engine: Literal["polars", "spark"] = "polars"
    """What reads and transforms the sources and fits the features: Polars on one machine, or Spark."""

    @field_validator("split")
    @classmethod
    def _split_within_window(cls, value: TimeSplit | KeySplit, info: ValidationInfo) -> TimeSplit | KeySplit:
        days = info.data.get("window_days")
        if days is not None and isinstance(value, TimeSplit) and value.validation_days + value.test_days >= days:
            raise ValueError(f"content with a window of {days} days: leave at least one of them to train on")
        return value
