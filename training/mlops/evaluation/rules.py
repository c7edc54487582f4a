"""The gate's rules for whether a candidate may replace the model in production, as functions of the measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

from scipy.special import stdtrit

from mlops.code import load_extension, resolved
from mlops.contract.rules import (
    RULES,
    Fairness,
    Improvement,
    Latency,
    NamedRule,
    RuleSpec,
    SeedNoise,
    Size,
    SliceLoss,
    Threshold,
)
from mlops.contract.section import Section, check_section
from mlops.contract.step import BadConfigError, StepError
from mlops.evaluation.slice_metrics import MIN_SAMPLES
from mlops.evaluation.verdict import Measured, RuleOutcome, Verdict


def judge(
    rules: Sequence[Section],
    measured: Measured,
    own: Callable[[str], object],
    *,
    periods_seen: int = 0,
    periods_started_from: int = 0,
) -> Verdict:
    """
    Judge a candidate: all rules must hold. The reason names those that fail; if all hold, the first, and how many there
    are.

    :param own: loads code of a recipe by its import path
    :param periods_seen: held-out periods that the champion was trained on, as when an old night is run again
    :param periods_started_from: those that the weights were trained on which the candidate started from: it fails then,
        for it has seen what it is measured on
    :raises BadConfigError: where a rule is about something that is not measured, or its code fails
    """
    outcomes = [_outcome(rule, measured, own) for rule in rules]
    failed = [each for each in outcomes if not each.passed]
    reason = " ".join(each.sentence for each in failed or outcomes[:1])
    if not failed and len(outcomes) > 1:
        reason += f" All {len(outcomes)} rules hold."
    if periods_seen:
        reason += f" The champion was trained on {periods_seen} of the held-out periods, which favours it."
    if periods_started_from:
        reason = (
            f"The weights that the candidate started from were trained on {periods_started_from} of the held-out "
            "periods: it has seen what it is measured on. Start from an earlier version (train.initialise), or hold "
            f"out later data. {reason}"
        )
    return Verdict(passed=not failed and not periods_started_from, reason=reason, outcomes=outcomes)


def _outcome(rule: Section, measured: Measured, own: Callable[[str], object]) -> RuleOutcome:
    name = rule.rule if isinstance(rule, NamedRule) else _name_of(rule)
    spec = load_extension(RULES, name, RuleSpec, own)
    if isinstance(rule, NamedRule):
        rule = check_section(spec.section, rule.settings, f"evaluate.rules: {name}")
    try:
        found = resolved(spec.outcome, own)(rule, measured)
    except StepError:
        raise
    except Exception as error:  # the code of others may raise anything
        raise BadConfigError(f"evaluate.rules: {name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, RuleOutcome):
        raise BadConfigError(f"evaluate.rules: {name} must return a RuleOutcome, got {found!r}")
    return found


def _name_of(rule: Section) -> str:
    """Return the name of the rule of ours whose settings these are."""
    return next(name for name in RULES.builtin if RULES.load(name).section is type(rule))


def _half_width(noise: SeedNoise, confidence: float) -> float:
    """
    Return the half width of a one-sided interval of the difference of two trainings, by Student's t: the deviation is
    an estimate.

    A bootstrap of the rows says nothing of this (Bouthillier et al. 2021, "Accounting for variance in machine
    learning benchmarks"): it asks how the same two models would do on other rows.
    """
    return float(stdtrit(noise.trainings - 1, confidence)) * math.sqrt(2) * noise.deviation


def improvement(rule: Improvement, measured: Measured) -> RuleOutcome:
    """
    Decide whether the candidate is better by more than a margin, and more than noise: superiority by a margin (Chow,
    Shao & Wang, "Sample size calculations in clinical research").

    The lower bound of the gain must exceed the margin itself. Were it compared with 0, and the margin with the
    value found, the margin would be met by luck half of the time where the true gain equals it.

    Bounds are percentiles of a paired bootstrap (Efron & Tibshirani 1993; of queries: Sakai 2006); the seed's part is
    independent of the rows' and is added to it in quadrature. Of few samples such bounds are too narrow, and of one
    they are no bounds at all (Hesterberg 2015, "What teachers should know about the bootstrap").
    """
    found = measured.estimate(rule.metric)
    name = found.title
    title = f"{name}: improvement over the champion"
    if found.champion is None:
        sentence = f"No champion to beat: {name} is {found.candidate.value:.4f} on the held-out data."
        return RuleOutcome(title=title, passed=True, sentence=sentence)
    gain, champion = found.gain, abs(found.champion.value)
    compared = f"{name} {found.candidate.value:.4f} against {found.champion.value:.4f} of the champion, version "
    compared += f"{measured.champion_version}" + (f" ({gain / champion:+.2%})" if champion else "")
    if found.num_samples < rule.min_samples:
        sentence = (
            f"{compared}, but on {found.num_samples:,} of the {rule.min_samples:,} samples that are asked for: on "
            "few, luck passes for an improvement. Hold out more by ingest.split, or lower min_samples of this rule "
            "in evaluate.rules and take that risk."
        )
        return RuleOutcome(title=title, passed=False, sentence=sentence)
    by_seed = _half_width(rule.seed_noise, rule.confidence) if rule.seed_noise else 0.0
    low = gain - math.hypot(gain - found.lowest_gain(rule.confidence), by_seed)
    high = gain + math.hypot(found.lowest_gain(1 - rule.confidence) - gain, by_seed)
    threshold = rule.improvement * champion
    passed = low > threshold
    surely = f"{low / champion:+.2%}" if champion else f"{low:+.4f}"
    return RuleOutcome(
        title=title,
        passed=passed,
        sentence=f"{compared}: with {100 * rule.confidence:g}% confidence at least {surely}, "
        f"{'more' if passed else 'not more'} than the {rule.improvement:.2%} improvement that is asked for.",
        note="Wider than the interval of the difference: another seed is allowed for too."
        if rule.seed_noise
        else "Another seed may come out otherwise: the rule has no seed_noise.",
        value=gain,
        low=low,
        high=high,
        threshold=threshold,
        asked=f"the lower end must be above {threshold:.4g}",
    )


def threshold(rule: Threshold, measured: Measured) -> RuleOutcome:
    """
    Decide by the value found on the hold-out, not by the end of its interval: a floor against what is plainly broken.
    """
    estimate = measured.estimate(rule.metric)
    name, found = estimate.title, estimate.candidate
    above = rule.at_least is None or found.value >= rule.at_least
    below = rule.at_most is None or found.value <= rule.at_most
    bounds = {"at least": rule.at_least, "at most": rule.at_most}
    asked = " and ".join(f"{side} {bound:g}" for side, bound in bounds.items() if bound is not None)
    passed = above and below
    # The bound that was missed, where there are two.
    lower = rule.at_least is not None and (rule.at_most is None or below)
    return RuleOutcome(
        title=f"{name}: {asked}",
        passed=passed,
        sentence=f"{name} is {found.value:.4f}, {'as' if passed else 'but'} {asked} is asked for.",
        value=found.value,
        low=found.low,
        high=found.high,
        threshold=rule.at_least if lower else rule.at_most,
        must_exceed=lower,
        asked=f"{asked} is asked for",
    )


def slice_loss(rule: SliceLoss, measured: Measured) -> RuleOutcome:
    """
    Decide whether no slice has a candidate that is worse than the champion by more than a share, and by more than
    chance: the upper bound of its gain counts, by the normal distribution, at a level that holds for all slices
    together (Bonferroni).
    """
    name = measured.estimate(None).title
    title = f"{name}: no slice more than {rule.slices:.2%} worse"
    if measured.champion_version is None:
        return RuleOutcome(title=title, passed=True, sentence="No champion whose slices could be better.")
    large = [each for each in measured.slices if each.num_samples >= rule.min_samples]
    counted = [(each, each.estimate) for each in large if each.estimate is not None]
    note = ""
    if unmeasured := [f"{each.column} {each.value} ({each.num_samples:,})" for each in large if not each.estimate]:
        note = f"{name} cannot be measured on {len(unmeasured)} of {len(large)} slices of {rule.min_samples} samples, "
        note += f"such as {unmeasured[0]}."
    if not counted:
        found = f"{name} can be measured on no slice of" if large else "No slice has"
        sentence = f"{found} {rule.min_samples} samples, so none is held against the champion's."
        return RuleOutcome(title=title, passed=True, sentence=sentence, note=note)
    z = NormalDist().inv_cdf(1 - (1 - rule.confidence) / len(counted))
    margins = []
    for _, estimate in counted:
        assert estimate.champion is not None, "there is a champion"
        allowed = -rule.slices * abs(estimate.champion.value)
        margins.append(estimate.gain + z * estimate.standard_error - allowed)
    worst, estimate = counted[margins.index(min(margins))]
    assert estimate.champion is not None, "there is a champion"
    threshold = -rule.slices * abs(estimate.champion.value)
    num_worse = sum(margin < 0 for margin in margins)
    noise = z * estimate.standard_error
    what = f"{worst.column} {worst.value} ({worst.num_samples:,} samples, {estimate.gain:+.4f})"
    share = f"more than {rule.slices:.2%} worse in {name}"
    return RuleOutcome(
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


def latency(rule: Latency, measured: Measured) -> RuleOutcome:
    """Decide by the time that requests take by themselves: a busy host does not make a model slow."""
    return _at_most("Latency of a request, p99", measured.serving.latency_p99_ms, rule.latency_p99_ms, "ms")


def size(rule: Size, measured: Measured) -> RuleOutcome:
    return _at_most("Size of the served model", measured.serving.num_bytes / 1e6, rule.size_mb, "MB")


def fairness(rule: Fairness, measured: Measured) -> RuleOutcome:
    title = f"Fairness: {rule.measure.replace('_', ' ')} between groups of "
    if alone := [each.column for each in measured.groups if each.num_groups < 2]:
        raise BadConfigError(
            f"evaluate.fairness: {alone[0]!r} has fewer than two groups with enough held-out rows to be compared"
        )
    values = {each.column: each.of(rule.measure) for each in measured.groups}
    if unknown := [column for column, value in values.items() if value is None]:
        title += unknown[0]
        sentence = (
            f"{title} cannot be measured: no two groups have {MIN_SAMPLES} held-out rows each of the same label. "
            "Hold out more by ingest.split, make larger groups in ingest.transform, or ask for "
            "measure: demographic_parity."
        )
        return RuleOutcome(title=title, passed=False, sentence=sentence)
    known = {column: value for column, value in values.items() if value is not None}
    worst = max(known, key=lambda column: known[column])
    note = ""
    if rule.measure == "equalised_odds":
        unseen = [(each.column, rate) for each in measured.groups for rate in each.unmeasured]
        note = " ".join(f"No two groups of {column} have enough rows for the {rate}." for column, rate in unseen)
    return _at_most(title + worst, known[worst], rule.fairness, note=note)


def _at_most(title: str, value: float, bound: float, unit: str = "", note: str = "") -> RuleOutcome:
    passed, unit = value <= bound, f" {unit}" if unit else ""
    return RuleOutcome(
        title=title,
        passed=passed,
        sentence=f"{title}: {value:.3g}{unit}, {'no more' if passed else 'more'} than the {bound:g}{unit} allowed.",
        note=note,
        value=value,
        threshold=bound,
        must_exceed=False,
        asked=f"at most {bound:g} is allowed",
    )
