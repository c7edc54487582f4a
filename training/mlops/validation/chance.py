"""What chance may do to the rows of a period: how far they may be from what is expected and still be as usual."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

LEAST_DEVIATIONS: Final = 4.0
"""Standard deviations that are allowed for in any case: one-sided 3 in 100,000."""
_OF_ALL: Final = 3e-3
"""How often chance may exceed what is allowed for it, in one of all columns."""
_EXACT: Final = 500
"""Most expected cases for which the binomial distribution is summed; with more it is normal."""


def deviations_for(num_columns: int) -> float:
    """Return how many standard deviations chance may add to each of so many columns: 4 up to a hundred of them."""
    return max(LEAST_DEVIATIONS, NormalDist().inv_cdf(1 - _OF_ALL / max(num_columns, 1)))


def most_by_chance(num_rows: int, share: float, deviations: float) -> int:
    """
    Return how many of so many rows chance alone may hit.

    :param share: of the rows, on average
    :param deviations: of the normal distribution, by which the chance of more is meant
    :return: the binomial distribution's quantile
    """
    expected = num_rows * share
    if share in (0, 1) or expected > _EXACT:
        return min(num_rows, math.ceil(expected + deviations * math.sqrt(expected * (1 - share))))
    rest = 1 - NormalDist().cdf(deviations)
    # As a logarithm: the chance of no hit at all may be smaller than any float, and that of many hits is not.
    log_exactly = num_rows * math.log1p(-share)
    above = 1 - math.exp(log_exactly)
    for hit in range(num_rows):
        if above <= rest:
            return hit
        log_exactly += math.log((num_rows - hit) / (hit + 1) * share / (1 - share))
        above -= math.exp(log_exactly)
    return num_rows
