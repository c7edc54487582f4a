from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mlops.evaluation.holdout_drift import column_drifts


def test_what_changed_most_stands_first() -> None:
    """Broken: whoever looks why a model got worse would read of columns that are as they were."""
    rng = np.random.default_rng(0)
    same = rng.normal(size=2000)
    day = pl.Series(range(2000)).cast(pl.Date)
    before = pl.DataFrame({"same": same, "moved": same, "gone": same, "text": ["a", "b"] * 1000, "at": day})
    now = pl.DataFrame(
        {
            "same": rng.permutation(same),
            "moved": same + 3,
            "text": ["a"] * 1500 + [None] * 500,
            "new": same,
            "at": day,
        }
    )
    found = column_drifts(before, now)
    assert [each.column for each in found] == ["moved", "text", "same"]
    assert found[-1].distance == pytest.approx(0, abs=1e-12)
    assert 0.5 < found[0].distance <= 1
    assert (found[1].before, found[1].now) == ("a", "a (25.0% missing)")


def test_columns_without_values_are_compared() -> None:
    """Broken: one column that is empty for once would end the evaluation."""
    empty = pl.Series([None, None], dtype=pl.Float64)
    found = column_drifts(pl.DataFrame({"x": empty}), pl.DataFrame({"x": [1.0, 2.0]}))
    assert found[0].distance == pytest.approx(1)
    assert (found[0].before, found[0].now) == ("none", "1.5")


def test_of_documents_the_length_is_compared() -> None:
    """Broken: of texts that never come twice every one would count as new, and the report quote a whole document."""
    before = pl.DataFrame({"text": [f"document {n} " + "x" * (n % 40) for n in range(400)]})
    assert column_drifts(before, before)[0].distance == 0
    renamed = before.with_columns(pl.col("text").str.replace("document", "Document"))
    (same,) = column_drifts(before, renamed)
    assert (same.column, same.distance) == ("length of text", 0)
    longer = before.with_columns(pl.col("text") + "y" * 400)
    (drift,) = column_drifts(before, longer)
    assert drift.distance > 0.5
    assert float(drift.now) - float(drift.before) == pytest.approx(400, abs=1)


def test_a_column_that_turned_into_texts_of_its_own_is_compared_by_length() -> None:
    same = ["left out", None] * 50
    (drift,) = column_drifts(pl.DataFrame({"note": same}), pl.DataFrame({"note": [f"note {n}" for n in range(100)]}))
    assert (drift.column, drift.before) == ("length of note", "8 (50.0% missing)")


@pytest.mark.parametrize("values", [["a", "b", "a"], [True, False, True]], ids=["texts", "truth values"])
def test_a_column_may_be_called_count(values: list[object]) -> None:
    """Broken: with such a column every evaluation would end once there is a champion."""
    table = pl.DataFrame({"count": values * 20})
    (drift,) = column_drifts(table, table)
    assert (drift.column, drift.distance) == ("count", 0)
