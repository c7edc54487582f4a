"""Our own rules, by the suite that others run on theirs."""

from __future__ import annotations

from typing import Any

import pytest

from mlops.testing.rules import RuleConformance


class TestRules(RuleConformance):
    @pytest.fixture(
        params=[
            {"improvement": 0.01},
            {"metric": "f1", "at_least": 0.5},
            {"slices": 0.05},
            {"latency_p99_ms": 100},
            {"size_mb": 10},
            {"fairness": 0.2},
            {"rule": "improvement", "improvement": 0.01},
        ],
        ids=lambda rule: next(iter(rule)),
    )
    def rule(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        found: dict[str, Any] = request.param
        return found
