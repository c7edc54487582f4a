"""Whether a canary does well: live metrics, rules, and the verdict."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from mlops_provider.promote_spec import SAMPLES
from mlops_provider.section import RULE_PATTERN

_COMPARE: Final = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


class SourceError(RuntimeError):
    """The source of live metrics did not give them."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The end of a canary."""

    passed: bool
    reason: str


def holds(rule: str, metrics: Mapping[str, float]) -> bool | None:
    """
    Whether a rule such as ``error_rate <= 0.01`` holds.

    :return: None where the metric is not there, or is no number (nothing was measured)
    """
    match = re.match(RULE_PATTERN, rule)
    assert match is not None, "checked with the settings"
    name, sign, bound = match.groups()
    value = metrics.get(name)
    return None if value is None or math.isnan(value) else bool(_COMPARE[sign](value, float(bound)))


def judge(
    metrics: Mapping[str, float] | None,
    *,
    passes: Sequence[str],
    fails: Sequence[str],
    min_samples: int,
    over: bool,
    problem: str = "",
) -> Judgement | None:
    """
    :param metrics: the newest; None where the source gives none just now
    :param over: whether the canary's time is
    :param problem: why there are none
    :return: None as long as it is open
    """
    if metrics is None:
        return Judgement(False, f"there are no live metrics at the end: {problem}") if over else None
    seen = ", ".join(f"{name} {value:g}" for name, value in sorted(metrics.items()))
    if min_samples and not metrics.get(SAMPLES, 0) >= min_samples:
        # One failed request of one is no error rate.
        return Judgement(False, f"fewer than {min_samples} {SAMPLES} at the end: {seen or 'none'}") if over else None
    if broken := [rule for rule in fails if holds(rule, metrics)]:
        return Judgement(False, f"{' and '.join(broken)}: {seen}")
    if not over:
        return None
    if unmet := [rule for rule in passes if not holds(rule, metrics)]:
        return Judgement(False, f"not {' and not '.join(unmet)} at the end: {seen}")
    return Judgement(True, f"the canary did well: {seen}")


async def live_metrics(source: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, float]:
    """
    Ask a source for its metrics.

    :param source: a source of :mod:`mlops_provider.promote_spec`
    :param names: what ``{model}`` and ``{version}`` stand for in addresses and queries
    :raises SourceError: where it cannot be reached or its answer cannot be read
    """

    def filled(text: str) -> str:
        # Not str.format: PromQL is full of braces.
        for name, value in names.items():
            text = text.replace("{" + name + "}", value)
        return text

    url = filled(source["url"])
    try:
        async with httpx.AsyncClient(timeout=10) as client:
            if source["kind"] == "http":
                document = (await client.get(url)).raise_for_status().json()
                return {name: float(value) for name, value in document.items()}
            found = {}
            for name, query in source["queries"].items():
                answer = await client.get(f"{url.rstrip('/')}/api/v1/query", params={"query": filled(query)})
                result = answer.raise_for_status().json()["data"]["result"]
                if len(result) > 1:
                    raise SourceError(
                        f"the query of {name!r} gives {len(result)} series; aggregate them, e.g. by sum()"
                    )
                if result:
                    found[name] = float(result[0]["value"][1])
            return found
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise SourceError(f"{url}: {error!r}") from error
