"""The canary: rules, sources over real HTTP, and the trigger that waits."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent
from served_metrics import Served

from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.release import Canary
from mlops_provider.canary import LiveMetrics, MetricsSourceError, judge, live_metrics
from mlops_provider.operators.canary import CanaryOperator
from mlops_provider.triggers.canary import CanaryTrigger

NAMES = {"model": "ranker", "version": "7"}
RULES: Mapping[str, Any] = {"passes": ["error_rate <= 0.01"], "fails": ["error_rate > 0.05"], "min_samples": 100}


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


@pytest.mark.parametrize(
    ("metrics", "over", "passed", "said"),
    [
        pytest.param({"samples": 500, "error_rate": 0.002}, False, None, "", id="good, and not over"),
        pytest.param({"samples": 500, "error_rate": 0.002}, True, True, "did well", id="good"),
        pytest.param({"samples": 500, "error_rate": 0.02}, False, None, "", id="poor, may still improve"),
        pytest.param({"samples": 500, "error_rate": 0.02}, True, False, "not error_rate <= 0.01 at the end", id="poor"),
        pytest.param({"samples": 500, "error_rate": 0.2}, False, False, "error_rate > 0.05: error_rate 0.2", id="bad"),
        pytest.param({"samples": 1, "error_rate": 1.0}, False, None, "", id="one failed request is no rate"),
        pytest.param({"samples": 99, "error_rate": 0.0}, True, False, "fewer than 100 samples", id="too few"),
        pytest.param({"error_rate": 0.0}, True, False, "fewer than 100 samples", id="nobody counts"),
        pytest.param({"samples": 500}, True, False, "not error_rate <= 0.01", id="metric is missing"),
        pytest.param(
            {"samples": 500, "error_rate": float("nan")}, True, False, "not error_rate", id="nothing measured"
        ),
        pytest.param(None, False, None, "", id="source is away"),
        pytest.param(None, True, False, "no live metrics at the end: away", id="source is away at the end"),
    ],
)
def test_the_verdict(metrics: dict[str, float] | None, over: bool, passed: bool | None, said: str) -> None:
    """Broken: a canary that nobody has seen working would go into production."""
    judgement = judge(None if metrics is None else LiveMetrics(metrics), over=over, problem="away", **RULES)
    assert (judgement and judgement.passed) == passed
    assert said in (judgement.reason if judgement else "")


def test_http_source(served: Served) -> None:
    served.answer = {"samples": 3, "error_rate": 0.5}
    found = asyncio.run(live_metrics({"kind": "http", "url": served.url + "/live/{model}?v={version}"}, NAMES))
    assert found == LiveMetrics(served.answer)
    assert served.asked == ["/live/ranker?v=7"]


def test_prometheus_source(served: Served) -> None:
    source = {
        "kind": "prometheus",
        "url": served.url,
        "queries": {"error_rate": 'sum(rate(e{version="{version}"}[5m]))'},
    }
    served.answer = {"data": {"result": [{"metric": {}, "value": [1700000000, "0.25"]}]}}
    assert asyncio.run(live_metrics(source, NAMES)) == LiveMetrics({"error_rate": 0.25})
    assert "version%3D%227%22" in served.asked[0]
    served.answer = {"data": {"result": []}}
    assert asyncio.run(live_metrics(source, NAMES)) == LiveMetrics()
    served.answer = {"data": {"resultType": "scalar", "result": [1700000000, "0.5"]}}
    assert asyncio.run(live_metrics(source, NAMES)) == LiveMetrics({"error_rate": 0.5})
    served.answer = {"data": {"result": [{}, {}]}}
    with pytest.raises(MetricsSourceError, match="gives 2 series; aggregate them"):
        asyncio.run(live_metrics(source, NAMES))


@pytest.mark.parametrize("answer", [[1], {"error_rate": "high"}, {"error_rate": None}], ids=["list", "word", "null"])
def test_an_answer_that_cannot_be_read_names_the_source(served: Served, answer: Any) -> None:
    served.answer = answer
    with pytest.raises(MetricsSourceError, match=served.url):
        asyncio.run(live_metrics({"kind": "http", "url": served.url}, NAMES))


def test_a_metric_that_cannot_be_read_hides_no_other(served: Served) -> None:
    """Broken: a canary that fails half of its requests would go on until its end, for a latency without a value."""
    served.answer = {"samples": 500, "error_rate": 0.5, "latency": None, "model": "ranker", "rows": 10**400}
    live = asyncio.run(live_metrics({"kind": "http", "url": served.url}, NAMES))
    assert live.values == {"samples": 500, "error_rate": 0.5}
    assert live.lacking["latency"] == "null is no number"
    judgement = judge(live, over=False, **RULES)
    assert judgement is not None
    assert judgement.reason == "error_rate > 0.05: error_rate 0.5, samples 500"


def test_why_a_metric_of_the_rules_is_not_there_is_said(served: Served) -> None:
    """Broken: who reads that the canary failed would look for the reason in the model."""
    served.answer = {"samples": 500, "error_rate": None, "latency": None}
    event = asyncio.run(event_of(CanaryTrigger(settings(served.url), NAMES, time.time())))
    assert not event.payload["passed"]
    assert event.payload["reason"] == (
        "not error_rate <= 0.01 at the end: samples 500, no error_rate (null is no number)"
    )


def test_a_query_that_prometheus_refuses_hides_no_other(served: Served) -> None:
    served.answers = {"bad": (400, {"status": "error"})}
    served.answer = {"data": {"resultType": "vector", "result": [{"value": [1700000000, "0.5"]}]}}
    queries = {"latency": "bad", "error_rate": "good"}
    live = asyncio.run(live_metrics({"kind": "prometheus", "url": served.url, "queries": queries}, NAMES))
    assert live.values == {"error_rate": 0.5}
    assert "400" in live.lacking["latency"]


def settings(url: str, **changes: Any) -> dict[str, Any]:
    given = {"minutes": 1, "source": {"kind": "http", "url": url}, "poll_seconds": 0.05, **RULES, **changes}
    return check_section(Canary, given, "canary").model_dump(mode="json")


async def event_of(trigger: CanaryTrigger) -> TriggerEvent:
    async for event in trigger.run():
        return event
    raise AssertionError("it fires")


def revived(trigger: CanaryTrigger) -> CanaryTrigger:
    """As another triggerer makes it."""
    path, arguments = json.loads(json.dumps(trigger.serialize()))
    assert path == f"{CanaryTrigger.__module__}.CanaryTrigger"
    return CanaryTrigger(**arguments)


def test_a_fail_rule_ends_it_at_once(served: Served) -> None:
    served.answer = {"samples": 500, "error_rate": 0.9}
    trigger = CanaryTrigger(settings(served.url), NAMES, time.time() + 60)
    begin = time.monotonic()
    payload = asyncio.run(event_of(revived(trigger))).payload
    assert not payload["passed"]
    assert "error_rate > 0.05" in payload["reason"]
    assert time.monotonic() - begin < 30


def test_another_triggerer_does_not_start_the_clock_anew(served: Served) -> None:
    """Broken: a canary would live for ever on a cluster that moves its triggerers about."""
    served.answer = {"samples": 500, "error_rate": 0.0}
    until = time.time() + 1.5
    trigger = CanaryTrigger(settings(served.url), NAMES, until)

    async def lost() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(event_of(trigger), 0.7)

    asyncio.run(lost())
    assert asyncio.run(event_of(revived(trigger))).payload["passed"]
    assert until <= time.time() < until + 20


def test_a_source_that_comes_back_is_asked_again(served: Served) -> None:
    served.status, served.answer = 503, {"samples": 500, "error_rate": 0.0}
    threading.Timer(0.4, lambda: setattr(served, "status", 200)).start()
    trigger = CanaryTrigger(settings(served.url), NAMES, time.time() + 2)
    assert asyncio.run(event_of(trigger)).payload["passed"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"passes": ["error_rate =< 0.01"]}, "must be a rule such as error_rate <= 0.01", id="rule"),
        pytest.param({"minutes": 1e9}, "minutes must be <= 525600, got 1000000000.0", id="without end"),
        pytest.param({"passes": []}, "passes must have at least 1 item, has 0", id="no rule"),
        pytest.param({"source": {"kind": "http", "url": "live"}}, "must be an address such as http://", id="address"),
        pytest.param({"source": {"kind": "file", "url": "x"}}, "source must have a kind that is one of", id="kind"),
        pytest.param({"source": {"kind": "prometheus", "url": "http://p:9090", "queries": {"error_rate": "e"}}},
                     "source.queries lacks samples, which the rules ask for", id="metric without query"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match="canary: ") as caught:
        settings("http://127.0.0.1:1", **changes)
    assert message in str(caught.value)


def test_a_canary_needs_retries() -> None:
    with pytest.raises(ValueError, match="a canary needs retries >= 1, got 0"):
        CanaryOperator(task_id="canary", version="{{ x }}", pipeline="p", retries=0, **settings("http://127.0.0.1:1"))
