"""The check that keys occur once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from mlops.contract.refs import shorten
from mlops.validation.anomalies import NUM_EXAMPLES, Anomaly, on_periods
from mlops.validation.rows import Rows

DUPLICATES: Final = "DUPLICATES"
# With a space, so that they are no column's names.
_NUM_ROWS: Final = "rows of the key"
_PERIOD: Final = "period of the row"


def check_unique(rows: Rows, key: Sequence[str]) -> list[Anomaly]:
    """
    Find rows that share a key. A missing value counts as a value like any other: a key has to be known.

    :param key: columns that together occur once; where the data lacks one, its absence is what is reported
    """
    if any(column not in rows.schema for column in key):
        return []
    repeated = rows.whole.group_by(key).agg(pl.len().alias(_NUM_ROWS)).filter(pl.last() > 1).collect(engine="streaming")
    if repeated.is_empty():
        return []
    num_rows = int(repeated.select(pl.last().sum()).item())
    periods = (
        rows.whole.select(*key, rows.period.alias(_PERIOD))
        .join(repeated.lazy().select(key), on=key, how="semi", nulls_equal=True)
        .select(pl.last().unique().sort())
        .collect()
        .to_series()
        .to_list()
    )
    shown = repeated.sort(pl.last(), *key, descending=[True, *[False] * len(key)], nulls_last=True).head(NUM_EXAMPLES)
    name = " + ".join(key)
    return [
        Anomaly(
            column=name,
            kind=DUPLICATES,
            title="Not unique",
            expected="every key once",
            found=f"{repeated.height:,} keys occur more than once, in {num_rows:,} of {rows.total:,} rows, "
            f"{on_periods(periods, len(rows.num_rows), rows.kind.grain)}",
            examples=tuple(
                f"{', '.join(_shown(value) for value in values)} {count:,}x" for *values, count in shown.iter_rows()
            ),
            periods=tuple(periods) if len(periods) < len(rows.num_rows) else (),
            fix=f"remove [{', '.join(key)}] from validate.unique",
        )
    ]


def _shown(value: object) -> str:
    """Return a value as text; of bytes and of vectors the beginning."""
    return shorten(value) if isinstance(value, bytes | list) else str(value)
