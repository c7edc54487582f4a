"""What a first recipe does with a table: a label, what is learnt, a time, and a feature of each other column."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from itertools import pairwise
from typing import Final, Literal

import polars as pl
from polars import selectors as cs

from mlops.contract.grain import Grain, Periods
from mlops.contract.step import BadConfigError, BadDataError
from mlops.first_recipe.table import Table
from mlops.validation.window_periods import ALIKE, before_alike

Objective = Literal["binary", "multiclass", "regression"]
METRICS: Final[Mapping[Objective, Sequence[str]]] = {
    "binary": ("auc", "log_loss"), "multiclass": ("accuracy", "macro_f1"), "regression": ("mae", "r2"),
}  # fmt: skip
"""The metric that decides, and one beside it."""
MOST_CLASSES: Final = 100
_LABELS: Final = ("label", "target", "y", "class", "outcome")
"""Names that a label often has."""
_FEW_NUMBERS: Final = 20
"""Different whole numbers of a label that are taken for classes, at most."""
_MOST_CATEGORIES: Final = 1_000
_ID: Final = re.compile(r"(?:^|[^a-z])id$", re.IGNORECASE)
"""A name that ends with the word: ``user_id``, and not ``paid``."""
_FEWEST_PERIODS: Final = 10
"""Periods with rows below which the newest are not held out."""
_MOST_PERIODS: Final = 365
_HELD_OUT: Final = 0.15
"""Share of the periods with rows for test, and as much for validation."""
_TOLERANCE: Final = 0.2
"""Of ``validate.volume``, where nothing is said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Time:
    """How rows lie in time. A period that is not over yet does not count."""

    column: str
    zone: str | None
    """Of times without an offset; None: all have one."""
    grain: Grain
    first: date
    """First day of the window."""
    end: date
    """Day after it."""
    window: int
    gaps: int
    """The most periods in a row without rows."""
    held_out: int
    """The newest periods for test, and as many for validation; 0: there are too few, and any rows are held out."""
    tolerance: float | None
    """By how much the number of rows changes from a period to the next of its kind; None: by as much as it likes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    label: str
    objective: Objective
    classes: Sequence[object]
    """Values of the label, where they are no numbers that are learnt as they are."""
    where: str | None
    """Code of the expression that leaves rows without a label out; None: each has one."""
    time: Time | None
    transforms: Mapping[str, str]
    """Code of each column's transform."""
    left_out: Mapping[str, str]
    """Reason by column."""
    notes: Sequence[str]
    """What a person should look at."""


def propose(
    table: Table, *, label: str | None, objective: Objective | None, event_time: str | None, zone: str, today: date
) -> Proposal:
    """
    :param label: column; the likeliest where None
    :param objective: what is learnt; what the label's values suggest where None
    :param event_time: column; the likeliest where None, and none where empty
    :param zone: IANA name of the zone of times without an offset
    :param today: there
    :raises BadConfigError: where a column that is named is not there, or cannot be used so
    :raises BadDataError: where nothing can be learnt from the table
    """
    for option, column in (("--label", label), ("--event-time", event_time)):
        if column and column not in table.rows.columns:
            known = ", ".join(table.rows.columns)
            raise BadConfigError(f"{option} {column}: the table has no such column; it has {known}")
    label = likely_label(table) if label is None else label
    instants = [name for name in table.instants() if name != label]
    if event_time is None:
        event_time = likely_time(table, instants)
    elif event_time and event_time not in instants:
        raise BadConfigError(
            f"--event-time {event_time}: its values are no dates or times of ISO 8601, such as 2013-02-09 or "
            "2013-02-09T05:00:00Z"
        )
    lacking, values = _of_all_rows(table, label)
    found, classes = _objective(values, objective)
    notes: list[str] = []
    if objective is None and classes and values.dtype.is_numeric():
        taken = f"the {len(classes)} values of {label} are taken for classes"
        notes.append(f"{taken}; --objective regression learns a number")
    when = _time(table, event_time, zone, today) if event_time else None
    if event_time and when is None:
        notes.append(f"all rows are of {event_time} from {today} on, a day that is not over: they are taken as undated")
    transforms, left_out, features = dict[str, str](), dict[str, str](), dict[str, str]()
    for name in table.rows.columns:
        if name == label or (when is not None and name == when.column):
            continue
        if name in instants:
            left_out[name] = "a time: derive what matters of it, such as the hour or the days since"
            continue
        made = _transform(table.rows.get_column(name), lacks_some=bool(lacking[name]))
        if isinstance(made, str):
            left_out[name] = made
            continue
        if (twice := next((each for each in made.features if each in features), None)) is not None:
            left_out[name] = f"the column {features[twice]!r} has a feature {twice!r} already: rename one of the two"
            continue
        features |= dict.fromkeys(made.features, name)
        transforms[name] = made.code
        if _gives_away(table.rows, name, label, found):
            notes.append(f"{name} alone tells the label: leave it out if it is known only afterwards")
    if not transforms:
        raise BadDataError(f"there is nothing to learn {label!r} from: no other column can be used as it is")
    return Proposal(
        label=label,
        objective=found,
        classes=classes,
        where=_where(label, lacking[label]),
        time=when,
        transforms=transforms,
        left_out=left_out,
        notes=notes,
    )


def likely_label(table: Table) -> str:
    """The column that is called as labels are, or else the last one."""
    names = table.rows.columns
    return next((name for wanted in _LABELS for name in names if name.lower() == wanted), names[-1])


def likely_time(table: Table, instants: Sequence[str]) -> str | None:
    """The first column of instants that every row has, and that are not all the same."""
    columns = {name: table.rows.get_column(name) for name in instants}
    return next((name for name, each in columns.items() if not each.null_count() and each.n_unique() > 1), None)


def _of_all_rows(table: Table, label: str) -> tuple[Mapping[str, Sequence[str]], pl.Series]:
    """
    Look at every row, for what the first ones may not show.

    :return: for each column which of ``null`` and ``nan`` it holds; and the label's different values
    :raises BadConfigError: where the column can be no label
    """
    dtype = table.rows.schema[label]
    if not (dtype.is_numeric() or dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Enum)):
        raise BadConfigError(f"--label {label}: the column is {dtype}; a label is a number, a class or a text")
    value = pl.col(label).cast(dtype)
    values = table.all_rows.select(value.fill_nan(None) if dtype.is_float() else value).drop_nulls().unique()
    nulls, nans = table.all_rows.select(pl.all().is_null().any()), table.all_rows.select(cs.float().is_nan().any())
    some, not_a_number, distinct = pl.collect_all([nulls, nans, values], engine="streaming")
    found = {"null": some, "nan": not_a_number}
    lacking = {
        name: [kind for kind, each in found.items() if name in each.columns and each[name][0]] for name in some.columns
    }
    return lacking, distinct.to_series()


def _where(label: str, lacking: Sequence[str]) -> str | None:
    tests = [f"nw.col({label!r}).is_{kind}()" for kind in lacking]
    return f"~{tests[0]}" if len(tests) == 1 else f"~({' | '.join(tests)})" if tests else None


def _objective(values: pl.Series, asked: Objective | None) -> tuple[Objective, Sequence[object]]:
    """
    Return what is learnt, and the label's values where they are classes that need names.

    :param values: of the label, each once
    """
    name, dtype = values.name, values.dtype
    number = dtype.is_numeric()
    distinct = (values if number or dtype == pl.Boolean else values.cast(pl.String)).sort()
    size = distinct.len()
    if size < 2:
        raise BadDataError(f"the label {name!r} is the same in all rows: name another column by --label")
    if dtype != pl.Boolean and not number and (distinct == "").any():
        raise BadDataError(
            f"the label {name!r} is an empty text in some rows: make it null there, or name another column by --label"
        )
    if number:
        numbers = distinct.cast(pl.Float64)
        whole = bool((numbers.is_finite() & (numbers == numbers.floor())).all())
        if asked == "regression" or (asked is None and not (whole and size <= _FEW_NUMBERS)):
            return "regression", []
        if not whole:
            raise BadConfigError(
                f"--objective {asked}: the label {name!r} has fractions; classes are whole numbers or text"
            )
    if asked == "regression":
        raise BadConfigError(f"--objective regression: the label {name!r} is {dtype}, not a number")
    if asked == "binary" and size > 2:
        raise BadConfigError(f"--objective binary: the label {name!r} has {size:,} values, not two")
    if size > MOST_CLASSES:
        raise BadDataError(
            f"the label {name!r} has {size:,} different values, such as {distinct[0]!r} and {distinct[1]!r}: more than "
            f"the {MOST_CLASSES} classes that are taken for some; name another column by --label"
        )
    objective: Objective = asked or ("binary" if size == 2 else "multiclass")
    classes = distinct.to_list()
    return objective, [] if objective == "binary" and classes == [0, 1] else classes


@dataclass(frozen=True, kw_only=True, slots=True)
class _Transform:
    code: str
    features: Sequence[str]
    """Names of the features that it makes."""


def _transform(column: pl.Series, *, lacks_some: bool) -> _Transform | str:
    """
    Numbers as they are and categories as ids, for trees.

    :param lacks_some: whether any row of the whole table has no value
    :return: the column's transform; or the reason why it is left out
    """
    name, dtype, present = column.name, column.dtype, column.drop_nulls()
    missing, marks = (', missing="indicator"', [f"{name}_missing"]) if lacks_some else ("", [])
    if not present.len():
        return "no row has a value"
    if isinstance(dtype, pl.List | pl.Array):
        sizes = present.list.len() if isinstance(dtype, pl.List) else present.arr.len()
        if sizes.n_unique() != 1 or not pl.Series(dtype=dtype.inner).dtype.is_numeric():
            return "lists of several lengths, or not of numbers"
        numbers = [f"{name}_{place}" for place in range(sizes[0])]
        return _Transform(code=f"Vector({name!r}, size={sizes[0]}{missing})", features=[*numbers, *marks])
    if not (dtype.is_numeric() or dtype in (pl.Boolean, pl.String, pl.Categorical, pl.Enum)):
        return f"{dtype}: derive numbers or categories from it"
    distinct = present.n_unique()
    if distinct == 1:
        return "the same in all rows"
    if dtype.is_integer() and distinct == column.len() > _FEW_NUMBERS and _names_rows(present):
        return "another number in each row"
    if dtype.is_numeric() or dtype == pl.Boolean:
        return _Transform(code=f"Passthrough({name!r}{missing})", features=[name, *marks])
    if distinct > max(2, present.len() // 2):
        return "text that is another one in most rows"
    many = distinct > _MOST_CATEGORIES
    code = f"Hash({name!r}, buckets=1024, " if many else f"Vocabulary({name!r}, "
    # A missing category is the id 0, and has no feature of its own.
    return _Transform(code=f'{code}encoding="id"{missing})', features=[f"{name}_id"])


def _names_rows(numbers: pl.Series) -> bool:
    """Whether numbers, all different, are ids: they are called so, or count the rows."""
    called = _ID.search(numbers.name) or numbers.name.endswith(("Id", "ID"))
    return bool(called) or bool((numbers.diff().drop_nulls() == 1).all())


def _gives_away(rows: pl.DataFrame, name: str, label: str, objective: Objective) -> bool:
    """Whether a column of few values has rows of one class only for each of them."""
    values = rows.select(name, label).drop_nulls()
    if objective == "regression" or not values.height or values.schema[name].is_nested():
        return False
    if values[name].n_unique() > 2 * values[label].n_unique():
        return False
    return bool((values.group_by(name).agg(pl.col(label).n_unique())[label] == 1).all())


def _time(table: Table, column: str, zone: str, today: date) -> Time | None:
    """None where no period with rows is over yet."""
    rows = {day: number for day, number in table.times(column).dt.date().value_counts().iter_rows() if day is not None}
    grain = _grain([day for day in rows if day < today])
    periods = Periods(grain, "UTC")
    counts: Counter[int] = Counter()
    for day, number in rows.items():
        counts[_period(periods, day)] += number
    over = sorted(number for number in counts if number < _period(periods, today))
    if not over:
        return None
    window = min(over[-1] - over[0] + 1, _MOST_PERIODS)
    kept = [number for number in over if number > over[-1] - window]
    return Time(
        column=column,
        zone=zone if table.lacks_offset(column) else None,
        grain=grain,
        first=periods.first_day(kept[0]),
        end=periods.first_day(kept[-1] + 1),
        window=window,
        gaps=max((after - before - 1 for before, after in pairwise(kept)), default=0),
        held_out=max(1, round(_HELD_OUT * len(kept))) if len(kept) >= _FEWEST_PERIODS else 0,
        tolerance=_tolerance({number: counts[number] for number in kept}, grain),
    )


def _period(periods: Periods, day: date) -> int:
    """Return the number of the period that a day lies in."""
    return periods.at(datetime.combine(day, time(), UTC))


def _grain(days: Collection[date]) -> Grain:
    """Months or weeks where no two days with rows lie in one."""
    grains: Sequence[Grain] = ("month", "week") if len(days) > 2 else ()
    alone = (grain for grain in grains if len({_period(Periods(grain, "UTC"), day) for day in days}) == len(days))
    return next(alone, "day")


def _tolerance(counts: Mapping[int, int], grain: Grain) -> float | None:
    """
    Somewhat more than the number of rows has changed from a period to the next that it is compared with.

    :return: None where that is too much to say anything
    """
    numbers = sorted(counts, reverse=True)
    earlier = {number: before_alike(number, numbers[place + 1 :], ALIKE[grain]) for place, number in enumerate(numbers)}
    changes = [abs(counts[number] / counts[others[0]] - 1) for number, others in earlier.items() if others]
    most = max(changes, default=0.0)
    if most > 0.7:
        return None
    return _TOLERANCE if most <= 0.8 * _TOLERANCE else max(_TOLERANCE, round(1.25 * most + 0.05, 1))
