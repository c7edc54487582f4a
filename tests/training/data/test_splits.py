from __future__ import annotations

import pytest

from mlops_provider.step import BadDataError
from training.data.splits import SplitConfig, days_of

DAYS = [f"2024-01-{day:02}" for day in range(1, 11)]


def test_the_newest_days_are_held_out() -> None:
    """Otherwise the model would be fitted on the future of what it is judged on."""
    parts = days_of(list(reversed(DAYS)), SplitConfig(validation_days=2, test_days=3))

    assert parts == {"train": DAYS[:5], "validation": DAYS[5:7], "test": DAYS[7:]}


@pytest.mark.parametrize("num_days", [0, 4, 5])
def test_a_window_without_a_day_to_train_on_is_refused(num_days: int) -> None:
    with pytest.raises(BadDataError, match=f"{num_days} days with rows, too few"):
        days_of(DAYS[:num_days], SplitConfig(validation_days=2, test_days=3))
