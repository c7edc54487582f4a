"""The section ``ingest``: what is read, and which rows are held out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from mlops.contract.grain import Grain, counted
from mlops.contract.section import Name, Section, Transform
from mlops.contract.sections.calendar import EVERY_DAY, Calendar
from mlops.contract.sources import AnySource, WholeFilesSource


def _no_share(value: object) -> object:
    if isinstance(value, float) and 0 < value < 1:
        raise ValueError(
            "a number of days, or of what ingest.grain says; shares go with key, rows, column or sources, as in "
            "{rows: hash, validation: 0.1, test: 0.1}"
        )
    return value


class TimeSplit(Section):
    """By time: the newest periods for test, those before for validation, the rest for training."""

    validation: Annotated[int, Field(ge=1), BeforeValidator(_no_share)] = 3
    """Periods before those of the test; the best epoch is chosen on them."""
    test: Annotated[int, Field(ge=1), BeforeValidator(_no_share)] = 3
    """The newest periods; candidate and champion are compared on them."""


class Shares(Section):
    """What a hash deals out to the splits, by shares."""

    dealt_out: ClassVar[str]
    """What that is, for messages."""
    validation: float = Field(default=0.1, gt=0, lt=1)
    """Share on which the best epoch is chosen."""
    test: float = Field(default=0.1, gt=0, lt=1)
    """Share on which candidate and champion are compared."""

    @model_validator(mode="after")
    def _something_to_train_on(self) -> Self:
        if self.validation + self.test >= 1:
            raise ValueError(f"content with all {self.dealt_out}: make validation and test add up to less than 1")
        return self


class KeySplit(Shares):
    """By a hash of an entity's key: all rows of a key are in one split, tonight and in every later night."""

    dealt_out = "keys"
    key: str
    """Column of the resulting table, text or whole numbers without nulls, e.g. ``user_id``."""


class RowSplit(Shares):
    """
    By a hash of the whole row without its instants, for rows that have neither a time nor an owner: equal rows are in
    one split.
    """

    dealt_out = "rows"
    rows: Literal["hash"]


class GivenSplit(Section):
    """As a column of the table says."""

    column: str
    """Column of the resulting table, text or whole numbers without nulls."""
    names: dict[str, Literal["train", "validation", "test"]] = {
        "train": "train",
        "validation": "validation",
        "test": "test",
    }
    """What the column's values mean."""
    validation: float | None = Field(default=None, gt=0, lt=1)
    """Where the column names no rows for the validation: the share of those to train on that is taken for it."""
    key: str | None = None
    """Column whose values stay together in that share, such as the query of a ranking; None: each row for itself."""

    @model_validator(mode="after")
    def _all_three(self) -> GivenSplit:
        named = {*self.names.values(), *(["validation"] if self.validation else [])}
        if lacking := {"train", "validation", "test"} - named:
            raise ValueError(
                f"given with names for {' and '.join(sorted(lacking))} too"
                + (", or with validation, the share of the rows to train on" if lacking == {"validation"} else "")
            )
        return self


class SplitSources(Section):
    """A source for each split."""

    train: Name
    test: Name
    validation: Name | None = None


class SourceSplit(Section):
    """By source: the rows of each are one split, and there is no transform."""

    sources: SplitSources
    validation: float | None = Field(default=None, gt=0, lt=1)
    """Without a source for the validation: the share of the rows to train on that is taken for it."""
    key: str | None = None
    """Column whose values stay together in that share, such as the query of a ranking; None: each row for itself."""

    @model_validator(mode="after")
    def _validation_once(self) -> SourceSplit:
        if (self.sources.validation is None) == (self.validation is None):
            raise ValueError("given with sources.validation, or with validation as a share of the rows to train on")
        return self


AnySplit = TimeSplit | KeySplit | RowSplit | GivenSplit | SourceSplit
_SAYS_WHICH = {"key": "KeySplit", "rows": "RowSplit", "column": "GivenSplit", "sources": "SourceSplit"}
SPLIT_COLUMN = "split"
"""Column that says of which source a row is, where these are the splits."""


def _kind_of_split(value: object) -> str:
    if isinstance(value, Section):
        return f"({type(value).__name__})"
    given = value if isinstance(value, Mapping) else {}
    # The share of a given split may have a key too.
    order = ["rows", "column", "sources", "key"]
    return f"({next((_SAYS_WHICH[each] for each in order if each in given), 'TimeSplit')})"


Split = Annotated[
    Annotated[TimeSplit, Tag("(TimeSplit)")]
    | Annotated[KeySplit, Tag("(KeySplit)")]
    | Annotated[RowSplit, Tag("(RowSplit)")]
    | Annotated[GivenSplit, Tag("(GivenSplit)")]
    | Annotated[SourceSplit, Tag("(SourceSplit)")],
    Discriminator(_kind_of_split),
]


class Ingest(Section):
    """Read the sources as they were known at the end of the data interval; store an immutable snapshot."""

    sources: dict[Name, AnySource] = Field(min_length=1)
    transform: Transform | None = None
    """``transform(sources: dict[str, narwhals.LazyFrame]) -> narwhals.LazyFrame``, or a file with one SELECT over the
    sources' names; not needed for a single source. It should give the same bits each time: sums, means and deviations
    of fractions do not, for they are added up in the order in which threads come to them. Add up whole numbers, or
    round the result; otherwise each run stores all its days again, and a lost file cannot be made again."""
    event_time: str
    """Column of the resulting table, an instant; the snapshot has one partition per period of it."""
    grain: Grain = "day"
    """The periods that data comes in: hours, calendar days, weeks from Monday on, or months, of the pipeline's time
    zone."""
    window: int = Field(default=30, ge=1)
    """Periods before the interval's end that the snapshot holds; one that is not over then is left out."""
    calendar: Calendar = EVERY_DAY
    """In which of them rows are expected: ``every_day``, ``business_days``, some weekdays less a country's holidays, or
    any with gaps of so many."""
    split: Split | None = Field(default=TimeSplit(), validate_default=True)
    """Which rows are held out: the newest periods, the keys of some entities, any rows, or those that the data says.
    None: nothing is learnt from this snapshot; a model is asked about its rows."""
    engine: Literal["polars", "spark"] = "polars"
    """What reads and transforms the sources, fits the features and asks models (step predict): Polars on one machine,
    or Spark."""

    @field_validator("split")
    @classmethod
    def _split_within_window(cls, value: AnySplit | None, info: ValidationInfo) -> AnySplit | None:
        window, grain, calendar = (info.data.get(name) for name in ("window", "grain", "calendar"))
        if window is not None and grain is not None and calendar is not None and isinstance(value, TimeSplit):
            if window == 1:
                raise ValueError(
                    f"by key, rows, column or sources where the window is one {grain}, e.g. {{rows: hash, test: 0.2}}"
                )
            most = calendar.most(window, grain)
            if value.validation + value.test >= most:
                of_them = "" if most == window else f", of which the calendar has at most {most}"
                raise ValueError(
                    f"content with a window of {counted(window, grain)}{of_them}: leave at least one to train on"
                )
        if isinstance(value, SourceSplit):
            known, split = info.data.get("sources", {}), value.sources
            for name in (split.train, split.validation, split.test):
                if name is not None and name not in known:
                    raise ValueError(f"of sources that there are: {', '.join(known)}")
            if info.data.get("transform"):
                raise ValueError("without sources where there is a transform: let it make a column, and name that")
        return value

    @model_validator(mode="after")
    def _undated_data_is_of_one_period(self) -> Ingest:
        if self.undated and self.window != 1:
            raise ValueError(
                f"content with window: 1, as all rows of {self.undated[0]!r} are of the {self.grain} in which they are "
                "read (event_time is its as_of)"
            )
        return self

    @property
    def undated(self) -> list[str]:
        """Names of the sources whose rows have the time at which they are read, and no other."""
        return [
            name
            for name, source in self.sources.items()
            if self.event_time == (source.event_time if isinstance(source, WholeFilesSource) else source.as_of)
        ]
