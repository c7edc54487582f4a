"""The rule of a package that is not part of the project, installed as a user would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from other_packages import installed, missing_on

from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.evaluate import Evaluate
from mlops.contract.step import BadConfigError
from mlops.evaluation.bootstrap import Estimate
from mlops.evaluation.rules import judge
from mlops.evaluation.verdict import RuleOutcome, Verdict
from mlops.testing import no_recipe
from mlops.testing.rules import RuleConformance, estimate_of, measured_of


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed("mlops-guardrails", tmp_path_factory.mktemp("site")):
        yield


class TestGuardrails(RuleConformance):
    @pytest.fixture
    def rule(self) -> dict[str, Any]:
        return {"rule": "guardrails", "worse": 0.01}


def section(*rules: dict[str, Any]) -> Evaluate:
    settings = {"registered_model": "m", "metric": "auc", "metrics": ["log_loss"], "rules": list(rules)}
    return check_section(Evaluate, settings, "evaluate")


def verdict(config: Evaluate, *estimates: Estimate) -> Verdict:
    champion = "3" if estimates[0].champion else None
    found = {each.metric: each for each in estimates}
    measured = replace(measured_of(0.8, 0.8), champion_version=champion, estimates=found, slices=[], groups=[])
    return judge(config.rules, measured, no_recipe)


def test_it_decides_beside_ours() -> None:
    config = section({"improvement": 0.01}, {"rule": "guardrails"})
    better = estimate_of("auc", 0.9, 0.8)
    passed = verdict(config, better, estimate_of("log_loss", 0.5, 0.5))
    assert passed.passed, passed.reason
    failed = verdict(config, better, estimate_of("log_loss", 0.4, 0.5))
    assert not failed.passed
    assert failed.reason == "log_loss is clearly worse than the champion's."
    assert [each.passed for each in failed.outcomes] == [True, False]


def test_its_settings_are_kept_with_their_defaults_and_reach_it() -> None:
    config = section({"rule": "guardrails", "worse": 0.25})
    [rule] = config.model_dump(mode="json")["rules"]
    assert rule == {"rule": "guardrails", "worse": 0.25, "confidence": 0.95}
    again = Evaluate.model_validate(config.model_dump(mode="json"))
    assert verdict(again, estimate_of("auc", 0.9, 0.8), estimate_of("log_loss", 0.4, 0.5)).passed


def test_a_rule_of_ours_may_be_named_too() -> None:
    config = section({"rule": "threshold", "metric": "auc", "at_least": 0.95})
    assert not verdict(config, estimate_of("auc", 0.9, None)).passed


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            {"rule": "guardrail"},
            "rules.0.rule must be one of improvement, .*(did you mean 'guardrails'?).*got 'guardrail'",
        ),
        ({"rule": "guardrails", "wors": 1}, "unknown key 'rules.0.wors'; did you mean 'worse'?"),
        ({"rule": "guardrails", "worse": -1}, "rules.0.worse must be >= 0, got -1"),
        ({"rule": "threshold", "metric": "f1", "at_least": 1}, "a rule is about 'f1', but measured are auc, log_loss"),
        ({"guardrails": 1}, "must be a rule, told by its key: improvement, .*; or another, by rule: NAME"),
    ],
)
def test_a_mistake_in_its_settings_is_said_where_it_stands(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        section(rule)
    for part in message.split(".*"):
        assert part in str(raised.value)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (lambda rule, measured: True, "evaluate.rules: include.a.rules:MINE must return a RuleOutcome, got True"),
        (lambda rule, measured: 1 / 0, "evaluate.rules: include.a.rules:MINE failed: ZeroDivisionError"),
    ],
)
def test_a_rule_of_a_recipe_that_fails_is_named(found: Any, message: str) -> None:
    """Broken: an error deep within the gate, or a model that passed by a rule that returned anything."""
    from mlops import RuleSpec, Section

    config = section({"rule": "include.a.rules:MINE"})
    measured = measured_of(0.8, None)
    with pytest.raises(BadConfigError, match=message):
        judge(config.rules, measured, lambda path: RuleSpec(section=Section, outcome=found))
    fine = RuleSpec(section=Section, outcome=lambda *_: RuleOutcome(title="t", passed=True, sentence="Fine."))
    assert judge(config.rules, measured, lambda path: fine).reason == "Fine."


def test_the_page_shows_this_package() -> None:
    assert missing_on("rule.md", "mlops-guardrails", ["pyproject.toml", "mlops_guardrails.py"]) == []
