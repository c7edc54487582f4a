from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mlops.evaluation.bias import GroupDifference, group_differences


def differences(labels: list[int], predicted: list[int]) -> GroupDifference:
    """Of groups A and B, which have half of the rows each, one after the other."""
    rows = pl.DataFrame({"group": np.repeat(["A", "B"], len(labels) // 2)})
    scores = 2 * np.array(predicted, np.float32) - 1
    [found] = group_differences(
        rows, ["group"], labels=np.array(labels, np.float32), candidate=scores, champion=-scores
    )
    return found


def test_odds_of_groups_without_a_label_in_common_are_unknown() -> None:
    """Broken: a group of positive rows only beside one of negative rows only would count as treated alike."""
    found = differences([1] * 20 + [0] * 20, [1] * 20 + [0] * 20)
    assert found.demographic_parity == 1
    assert (found.equalised_odds, found.champion_equalised_odds) == (None, None)
    assert found.unmeasured == ("true positive rate", "false positive rate")


@pytest.mark.parametrize(("only", "unmeasured"), [(1, "false positive rate"), (0, "true positive rate")])
def test_odds_are_those_of_the_label_that_two_groups_have(only: int, unmeasured: str) -> None:
    """Of B half are of the label that all of A are of; those are predicted wrongly, those of A are not."""
    found = differences([only] * 20 + [only, 1 - only] * 10, [only] * 20 + [1 - only] * 20)
    assert (found.equalised_odds, found.champion_equalised_odds) == (1, 1)
    assert found.unmeasured == (unmeasured,)


def test_a_single_group_is_compared_with_nothing() -> None:
    found = differences([1] * 9 + [1, 0] * 4 + [1], [1] * 18)
    assert found.num_groups == 0
    assert (found.demographic_parity, found.equalised_odds) == (None, None)
