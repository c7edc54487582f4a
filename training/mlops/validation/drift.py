"""
The distance of a column's distribution from a reference: the champion's snapshot, the previous one, a serving log.

Columns of numbers are measured by the Jensen-Shannon divergence (base 2, 0 to 1; J. Lin, "Divergence measures based on
the Shannon entropy", IEEE Transactions on Information Theory 37, 1991) over bins whose edges the reference fixes;
strings by the L-infinity distance, the largest difference of a value's share. Both as TFDV computes them, except that
rows without a value count, as a bin of their own. TFDV's own bins, of equal widths, see noise where there is a heavy
tail, and its L-infinity of numbers is always 0. Instants are left out: time goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from tensorflow_metadata.proto.v0 import anomalies_pb2, statistics_pb2

from mlops.contract.sections.validate import Drift
from mlops.validation.anomalies import Anomaly, ColumnDistance, Distribution
from mlops.validation.bins import Numbers, counts, is_point
from mlops.validation.chance import LEAST_DEVIATIONS
from mlops.validation.statistics import FeatureType, reference_bins

JENSEN_SHANNON: Final = "Jensen-Shannon divergence"
L_INFINITY: Final = "L-infinity distance"
NO_VALUE: Final = "no value"
NOT_A_NUMBER: Final = "NaN"
OTHER_VALUES: Final = "other values"
_MAX_VALUES_SHOWN: Final = 20
_NUM_CHANGES_SHOWN: Final = 3

_Kind = anomalies_pb2.AnomalyInfo.Type
Feature: TypeAlias = statistics_pb2.FeatureNameStatistics


@dataclass(frozen=True, slots=True)
class BinCounts:
    """Rows by bin, of the reference and of the examined data, and the number of all rows of each."""

    labels: Sequence[str]
    reference: Sequence[int]
    found: Sequence[int]
    num_reference: int
    num_found: int

    def shares(self) -> list[tuple[float, float]]:
        return [(p / self.num_reference, q / self.num_found) for p, q in zip(self.reference, self.found, strict=True)]

    @property
    def noise(self) -> float:
        """Variance of the difference of a share p between two samples of the same rows, divided by p (1 - p)."""
        return 1 / self.num_reference + 1 / self.num_found


def column_distance(
    reference: Feature,
    feature: Feature,
    numbers: Numbers | None,
    config: Drift,
    names: tuple[str, str],
    deviations: float = LEAST_DEVIATIONS,
) -> ColumnDistance | None:
    """
    Compare a column with the reference's.

    :param numbers: the column's numbers, as :func:`mlops.validation.statistics.describe_column` returns them
    :param names: names of the reference's rows and of the examined ones
    :param deviations: standard deviations that chance may add
    :return: the distance; None if the column is left out, or has changed its type, which the schema checks
    """
    name = feature.path.step[0]
    is_text = numbers is None
    allowed = config.allowed(name, is_text=is_text)
    if allowed is None or is_text != (reference.type == FeatureType.STRING):
        return None
    bins = _values(reference, feature) if numbers is None else _numbers(reference, numbers)
    distance, by_chance = (l_infinity if is_text else jensen_shannon)(bins, deviations)
    return ColumnDistance(
        column=name,
        measure=L_INFINITY if is_text else JENSEN_SHANNON,
        distance=distance,
        threshold=allowed + by_chance,
        distribution=shown(bins, names, is_text=is_text),
    )


def drifted(column: ColumnDistance, whose: str, title: str) -> Anomaly:
    """
    Describe a column that is too far from its reference as an anomaly.

    :param whose: the reference in words, e.g. ``the champion's snapshot``
    """
    at_most = f"{column.measure} of at most {column.threshold:.3g}"
    kind = (
        _Kind.COMPARATOR_L_INFTY_HIGH
        if column.measure == L_INFINITY
        else _Kind.COMPARATOR_JENSEN_SHANNON_DIVERGENCE_HIGH
    )
    return Anomaly(
        column=column.column,
        kind=_Kind.Name(kind),
        title=title,
        expected=f"about the distribution of {whose}: {at_most}",
        found=f"its distribution is not that of {whose} ({column.distribution.expected_name}): "
        f"{column.measure} {column.distance:.3g}",
        examples=largest_changes(column.distribution),
        fix=f"set validate.drift.columns.{column.column} to a larger threshold, or to null to compare it no more",
        distribution=column.distribution,
    )


def largest_changes(distribution: Distribution) -> tuple[str, ...]:
    bins = zip(distribution.labels, distribution.expected, distribution.found, strict=True)
    changes = sorted(bins, key=lambda shares: -abs(shares[1] - shares[2]))[:_NUM_CHANGES_SHOWN]
    return tuple(f"{label}: {100 * p:.3g}% -> {100 * q:.3g}%" for label, p, q in changes)


def jensen_shannon(bins: BinCounts, deviations: float) -> tuple[float, float]:
    """Return the divergence, and the part of it that chance alone may cause."""
    divergence, num_bins = 0.0, 0
    for p, q in bins.shares():
        middle = (p + q) / 2
        divergence += sum(share * math.log2(share / middle) for share in (p, q) if share) / 2
        num_bins += middle > 0
    # Between two samples of the same rows it is, to the leading order, (1/n1 + 1/n2) / (8 ln 2) times a chi-squared
    # of one degree of freedom less than there are bins.
    return max(0.0, divergence), _chi_squared(num_bins - 1, deviations) * bins.noise / (8 * math.log(2))


def _chi_squared(degrees: int, deviations: float) -> float:
    """Return the chi-squared distribution's quantile at so many deviations (Wilson and Hilferty, PNAS 17, 1931)."""
    if not degrees:
        return 0.0
    variance = 2 / (9 * degrees)
    return degrees * (1 - variance + deviations * math.sqrt(variance)) ** 3


def l_infinity(bins: BinCounts, deviations: float) -> tuple[float, float]:
    """Return the distance, and the part of it that chance alone may cause."""
    num_rows = bins.num_reference + bins.num_found
    pooled = [(before + now) / num_rows for before, now in zip(bins.reference, bins.found, strict=True)]
    widest = max(share * (1 - share) for share in pooled)
    return max(abs(p - q) for p, q in bins.shares()), deviations * math.sqrt(widest * bins.noise)


def _numbers(reference: Feature, numbers: Numbers) -> BinCounts:
    common, bins = reference.num_stats.common_stats, reference_bins(reference.num_stats)
    edges = [bins.buckets[0].low_value, *(bucket.high_value for bucket in bins.buckets)] if bins.buckets else []
    inside = [round(bucket.sample_count) for bucket in bins.buckets]
    # Outside is nothing but -infinity, which no edge is before; without edges there is no value at all.
    outside = [common.num_non_missing - bins.num_nan - sum(inside)]
    before = [*outside, *inside, 0] if edges else outside
    return BinCounts(
        labels=[*ranges(edges), NOT_A_NUMBER, NO_VALUE],
        reference=[*before, bins.num_nan, common.num_missing],
        found=[*counts(numbers, edges), numbers.num_nan, numbers.num_missing],
        num_reference=common.num_non_missing + common.num_missing,
        num_found=numbers.ordered.len() + numbers.num_nan + numbers.num_missing,
    )


def ranges(edges: Sequence[float]) -> list[str]:
    if not edges:
        return ["any value"]
    labels = [f"up to {edges[0]:.6g}"]
    for low, high in pairwise(edges):
        labels.append(f"{high:.6g}" if is_point(low, high) else f"{low:.6g} to {high:.6g}")
    return [*labels, f"above {edges[-1]:.6g}"]


def _values(reference: Feature, feature: Feature) -> BinCounts:
    common, common_now = reference.string_stats.common_stats, feature.string_stats.common_stats
    before, now = _by_value(reference), _by_value(feature)
    labels = sorted(before | now, key=lambda value: (-before.get(value, 0), -now.get(value, 0), value))
    return BinCounts(
        labels=[*labels, NO_VALUE],
        reference=[*(before.get(value, 0) for value in labels), common.num_missing],
        found=[*(now.get(value, 0) for value in labels), common_now.num_missing],
        num_reference=common.num_non_missing + common.num_missing,
        num_found=common_now.num_non_missing + common_now.num_missing,
    )


def _by_value(feature: Feature) -> dict[str, int]:
    return {bucket.label: round(bucket.sample_count) for bucket in feature.string_stats.rank_histogram.buckets}


def shown(bins: BinCounts, names: tuple[str, str], *, is_text: bool) -> Distribution:
    """Return the distributions that people see: no empty bins, and of many values the frequent or most changed ones."""
    rows = [(label, p, q) for label, (p, q) in zip(bins.labels, bins.shares(), strict=True) if p or q]
    if is_text and len(rows) > _MAX_VALUES_SHOWN:
        by_weight = sorted(rows, key=lambda row: -max(row[1], row[2], 10 * abs(row[1] - row[2])))
        shown = set(by_weight[: _MAX_VALUES_SHOWN - 1])
        rest = [row for row in rows if row not in shown]
        others = (OTHER_VALUES, sum(p for _, p, _ in rest), sum(q for _, _, q in rest))
        rows = [*(row for row in rows if row in shown), others]
    labels, expected, found = zip(*rows, strict=True)
    return Distribution(labels=labels, expected=expected, found=found, expected_name=names[0], found_name=names[1])
