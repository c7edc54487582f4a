"""Whether a canary does well: live metrics, rules, and the verdict."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from mlops.contract.section import RULE_PATTERN
from mlops.contract.sections.release import SAMPLES

_COMPARE: Final = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_UNREADABLE: Final = (
    *(httpx.HTTPError, httpx.InvalidURL),
    *(ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError),
)


class MetricsSourceError(RuntimeError):
    """The source of live metrics did not give them."""


@dataclass(frozen=True, slots=True)
class LiveMetrics:
    """What a source gives. One metric that cannot be read hides no other."""

    values: dict[str, float] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    """Why a metric is not among them."""


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
    name, sign, bound = _parts(rule)
    value = metrics.get(name)
    return None if value is None or math.isnan(value) else bool(_COMPARE[sign](value, float(bound)))


def _parts(rule: str) -> Sequence[str]:
    """The metric, the sign and the number."""
    match = re.match(RULE_PATTERN, rule)
    assert match is not None, "checked with the settings"
    return match.groups()


def judge(
    live: LiveMetrics | None,
    *,
    passes: Sequence[str],
    fails: Sequence[str],
    min_samples: int,
    over: bool,
    problem: str = "",
) -> Judgement | None:
    """
    :param live: the newest metrics; None where the source gives none just now
    :param over: whether the canary's time is
    :param problem: why there are none
    :return: None as long as it is open
    """
    if live is None:
        return Judgement(False, f"there are no live metrics at the end: {problem}") if over else None
    metrics, asked = live.values, {SAMPLES, *(_parts(rule)[0] for rule in (*passes, *fails))}
    told = [f"{name} {value:g}" for name, value in sorted(metrics.items())]
    told += [f"no {name} ({why})" for name, why in sorted(live.lacking.items()) if name in asked]
    seen = ", ".join(told)
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


async def live_metrics(source: Mapping[str, Any], names: Mapping[str, str]) -> LiveMetrics:
    """
    Ask a source for its metrics.

    :param source: a source of :mod:`mlops.contract.sections.release`
    :param names: what ``{model}`` and ``{version}`` stand for in addresses and queries
    :raises SourceError: where it cannot be reached, or nothing of its answer can be read
    """

    def filled(text: str) -> str:
        # Not str.format: PromQL is full of braces.
        for name, value in names.items():
            text = text.replace("{" + name + "}", value)
        return text

    url = filled(source["url"])
    async with httpx.AsyncClient(timeout=10) as client:
        if source["kind"] == "http":
            live = await _from_http(client, url)
        else:
            queries = {name: filled(query) for name, query in source["queries"].items()}
            live = await _from_prometheus(client, url, queries)
    if live.lacking and not live.values:
        raise MetricsSourceError(f"{url}: " + "; ".join(f"{name}: {why}" for name, why in live.lacking.items()))
    return live


async def _from_http(client: httpx.AsyncClient, url: str) -> LiveMetrics:
    try:
        given = (await client.get(url)).raise_for_status().json().items()
    except _UNREADABLE as error:
        raise MetricsSourceError(f"{url}: {error!r}") from error
    live = LiveMetrics()
    for name, value in given:
        try:
            live.values[name] = float(value)
        except (ValueError, TypeError, OverflowError):
            live.lacking[name] = f"{json.dumps(value)[:50]} is no number"
    return live


async def _from_prometheus(client: httpx.AsyncClient, url: str, queries: Mapping[str, str]) -> LiveMetrics:
    live = LiveMetrics()
    for name, query in queries.items():
        try:
            answer = await client.get(f"{url.rstrip('/')}/api/v1/query", params={"query": query})
            value = _value(answer.raise_for_status().json()["data"])
        except _UNREADABLE as error:
            live.lacking[name] = str(error).partition("\n")[0] or repr(error)
        else:
            if value is not None:
                live.values[name] = value
    return live


def _value(data: Mapping[str, Any]) -> float | None:
    """
    Return the value in Prometheus's answer to a query; None where nothing was measured.

    :raises ValueError: where it is more than one
    """
    result = data["result"]
    if data.get("resultType") == "scalar":
        return float(result[1])
    if len(result) > 1:
        raise ValueError(f"the query gives {len(result)} series; aggregate them, e.g. by sum()")
    return float(result[0]["value"][1]) if result else None
