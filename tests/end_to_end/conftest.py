"""Deployments, and what their canaries ask, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from deployments import migrated, new_airflow
from served_metrics import Served

__all__ = ["migrated", "new_airflow", "served"]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Live metrics of the canaries, for the deployment to find by its environment."""
    served = Served()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIVE_METRICS", served.url)
        yield served
    served.close()
