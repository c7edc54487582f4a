"""The rules of the gate. Their settings and defaults are in ``mlops.contract.sections.rules``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

from scipy.special import stdtrit

from mlops.contract.step import BadConfigError
from mlops.evaluation.gate import Measured, Outcome, Rule
from mlops.evaluation.slices import MIN_SAMPLES
from mlops.trainer.metrics import named


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedNoise:
    deviation: float
    trainings: int

    def half_width(self, confidence: float) -> float:
        """
        Of a one-sided interval of the difference of two trainings, by Student's t: the deviation is an estimate.

        A bootstrap of the rows says nothing of this (Bouthillier et al. 2021, "Accounting for variance in machine
        learning benchmarks"): it asks how the same two models would do on other rows.
        """
        return float(stdtrit(self.trainings - 1, confidence)) * math.sqrt(2) * self.deviation


@dataclass(frozen=True, kw_only=True, slots=True)
class Improvement:
    """
    The candidate is better by more than a margin, and more than noise: superiority by a margin (Chow, Shao & Wang,
    "Sample size calculations in clinical research").

    The lower bound of the gain must exceed the margin itself. Were it held against 0, and the margin against the
    value found, the margin would be met by luck half of the time where the true gain equals it.

    Bounds are percentiles of a paired bootstrap (Efron & Tibshirani 1993; of queries: Sakai 2006); the seed's part is
    independent of the rows' and is added to it in quadrature. Of few samples such bounds are too narrow, and of one
    they are no bounds at all (Hesterberg 2015, "What teachers should know about the bootstrap").
    """

    improvement: float
    metric: str | None
    confidence: float
    min_samples: int
    seed_noise: SeedNoise | None

    def outcome(self, measured: Measured) -> Outcome:
        found = measured.estimate(self.metric)
        name = named(found.metric)
        title = f"{name}: improvement over the champion"
        if found.champion is None:
            sentence = f"No champion to beat: {name} is {found.candidate.value:.4f} on the held-out data."
            return Outcome(title=title, passed=True, sentence=sentence)
        gain, champion = found.gain, abs(found.champion.value)
        compared = f"{name} {found.candidate.value:.4f} against {found.champion.value:.4f} of the champion, version "
        compared += f"{measured.champion_version}" + (f" ({gain / champion:+.2%})" if champion else "")
        if found.num_samples < self.min_samples:
            sentence = (
                f"{compared}, but on {found.num_samples:,} of the {self.min_samples:,} samples that are asked for: on "
                "few, luck passes for an improvement. Hold out more by ingest.split, or lower min_samples of this rule "
                "in evaluate.rules and take that risk."
            )
            return Outcome(title=title, passed=False, sentence=sentence)
        by_seed = self.seed_noise.half_width(self.confidence) if self.seed_noise else 0.0
        low = gain - math.hypot(gain - found.lowest_gain(self.confidence), by_seed)
        high = gain + math.hypot(found.lowest_gain(1 - self.confidence) - gain, by_seed)
        threshold = self.improvement * champion
        passed = low > threshold
        surely = f"{low / champion:+.2%}" if champion else f"{low:+.4f}"
        return Outcome(
            title=title,
            passed=passed,
            sentence=f"{compared}: with {100 * self.confidence:g}% confidence at least {surely}, "
            f"{'more' if passed else 'not more'} than the {self.improvement:.2%} improvement that is asked for.",
            note="Wider than the interval of the difference: another seed is allowed for too."
            if self.seed_noise
            else "Another seed may come out otherwise: the rule has no seed_noise.",
            value=gain,
            low=low,
            high=high,
            threshold=threshold,
            asked=f"the lower end must be above {threshold:.4g}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """The value found on the hold-out, not the end of its interval: a floor against what is plainly broken."""

    metric: str
    at_least: float | None
    at_most: float | None

    def outcome(self, measured: Measured) -> Outcome:
        found = measured.estimate(self.metric).candidate
        above = self.at_least is None or found.value >= self.at_least
        below = self.at_most is None or found.value <= self.at_most
        bounds = {"at least": self.at_least, "at most": self.at_most}
        asked = " and ".join(f"{side} {bound:g}" for side, bound in bounds.items() if bound is not None)
        passed = above and below
        # The bound that was missed, where there are two.
        lower = self.at_least is not None and (self.at_most is None or below)
        return Outcome(
            title=f"{named(self.metric)}: {asked}",
            passed=passed,
            sentence=f"{named(self.metric)} is {found.value:.4f}, {'as' if passed else 'but'} {asked} is asked for.",
            value=found.value,
            low=found.low,
            high=found.high,
            threshold=self.at_least if lower else self.at_most,
            must_exceed=lower,
            asked=f"{asked} is asked for",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceLoss:
    """
    No slice on which the candidate is worse than the champion by more than a share, beyond what chance does: the upper
    bound of its gain, by the normal distribution, at a level that holds for all slices together (Bonferroni).
    """

    slices: float
    min_samples: int
    confidence: float

    def outcome(self, measured: Measured) -> Outcome:
        name = named(measured.metric)
        title = f"{name}: no slice more than {self.slices:.2%} worse"
        if measured.champion_version is None:
            return Outcome(title=title, passed=True, sentence="No champion whose slices could be better.")
        large = [each for each in measured.slices if each.num_samples >= self.min_samples]
        counted = [(each, each.estimate) for each in large if each.estimate is not None]
        note = ""
        if unmeasured := [f"{each.column} {each.value} ({each.num_samples:,})" for each in large if not each.estimate]:
            note = (
                f"{name} cannot be measured on {len(unmeasured)} of {len(large)} slices of {self.min_samples} samples, "
            )
            note += f"such as {unmeasured[0]}."
        if not counted:
            found = f"{name} can be measured on no slice of" if large else "No slice has"
            sentence = f"{found} {self.min_samples} samples, so none is held against the champion's."
            return Outcome(title=title, passed=True, sentence=sentence, note=note)
        z = NormalDist().inv_cdf(1 - (1 - self.confidence) / len(counted))
        margins = []
        for _, estimate in counted:
            assert estimate.champion is not None, "there is a champion"
            allowed = -self.slices * abs(estimate.champion.value)
            margins.append(estimate.gain + z * estimate.standard_error - allowed)
        worst, estimate = counted[margins.index(min(margins))]
        assert estimate.champion is not None, "there is a champion"
        threshold = -self.slices * abs(estimate.champion.value)
        num_worse = sum(margin < 0 for margin in margins)
        noise = z * estimate.standard_error
        what = f"{worst.column} {worst.value} ({worst.num_samples:,} samples, {estimate.gain:+.4f})"
        share = f"more than {self.slices:.2%} worse in {name}"
        return Outcome(
            title=title,
            passed=not num_worse,
            sentence=f"{num_worse} of {len(counted)} slices are clearly {share}, above all {what}."
            if num_worse
            else f"None of {len(counted)} slices is clearly {share}; the nearest to it is {what}.",
            note=note,
            value=estimate.gain,
            low=estimate.gain - noise,
            high=estimate.gain + noise,
            threshold=threshold,
            asked=f"the upper end must be above {threshold:.4g}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Of the time that requests take by themselves: a busy host does not make a model slow."""

    latency_p99_ms: float

    def outcome(self, measured: Measured) -> Outcome:
        return _at_most("Latency of a request, p99", measured.serving.latency_p99_ms, self.latency_p99_ms, "ms")


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    size_mb: float

    def outcome(self, measured: Measured) -> Outcome:
        return _at_most("Size of the served model", measured.serving.num_bytes / 1e6, self.size_mb, "MB")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fairness:
    fairness: float
    measure: str

    def outcome(self, measured: Measured) -> Outcome:
        title = f"Fairness: {self.measure.replace('_', ' ')} between groups of "
        if alone := [each.column for each in measured.groups if each.num_groups < 2]:
            raise BadConfigError(
                f"evaluate.fairness: {alone[0]!r} has fewer than two groups with enough held-out rows to be compared"
            )
        values = {each.column: each.of(self.measure) for each in measured.groups}
        if unknown := [column for column, value in values.items() if value is None]:
            title += unknown[0]
            sentence = (
                f"{title} cannot be measured: no two groups have {MIN_SAMPLES} held-out rows each of the same label. "
                "Hold out more by ingest.split, make larger groups in ingest.transform, or ask for "
                "measure: demographic_parity."
            )
            return Outcome(title=title, passed=False, sentence=sentence)
        known = {column: value for column, value in values.items() if value is not None}
        worst = max(known, key=lambda column: known[column])
        note = ""
        if self.measure == "equalised_odds":
            unseen = [(each.column, rate) for each in measured.groups for rate in each.unmeasured]
            note = " ".join(f"No two groups of {column} have enough rows for the {rate}." for column, rate in unseen)
        return _at_most(title + worst, known[worst], self.fairness, note=note)


RULES: Final[Mapping[str, type[Any]]] = {
    "improvement": Improvement,
    "at_least": Threshold,
    "slices": SliceLoss,
    "latency_p99_ms": Latency,
    "size_mb": Size,
    "fairness": Fairness,
}
"""By the key that tells them apart."""


def rule_of(section: Mapping[str, Any]) -> Rule:
    """Read one of the step's input document."""
    kind = next(rule for key, rule in RULES.items() if key in section)
    settings = dict(section)
    if settings.get("seed_noise") is not None:
        settings["seed_noise"] = SeedNoise(**settings["seed_noise"])
    rule: Rule = kind(**settings)
    return rule


def _at_most(title: str, value: float, bound: float, unit: str = "", note: str = "") -> Outcome:
    passed, unit = value <= bound, f" {unit}" if unit else ""
    return Outcome(
        title=title,
        passed=passed,
        sentence=f"{title}: {value:.3g}{unit}, {'no more' if passed else 'more'} than the {bound:g}{unit} allowed.",
        note=note,
        value=value,
        threshold=bound,
        must_exceed=False,
        asked=f"at most {bound:g} is allowed",
    )
