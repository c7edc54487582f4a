from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from training.evaluation.drift import column_drifts


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
