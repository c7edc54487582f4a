"""Our own samplers and pruners, by the suite that others run on theirs."""

from __future__ import annotations

import pytest

from mlops.testing.samplers import PrunerConformance, SamplerConformance


class TestSamplers(SamplerConformance):
    @pytest.fixture(params=["tpe", "random"])
    def name(self, request: pytest.FixtureRequest) -> str:
        found: str = request.param
        return found


class TestPruners(PrunerConformance):
    @pytest.fixture(params=["none", "median", "successive_halving", "hyperband"])
    def name(self, request: pytest.FixtureRequest) -> str:
        found: str = request.param
        return found
