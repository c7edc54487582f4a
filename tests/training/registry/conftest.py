from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from training.registry.promotion import Promotion
from training.registry.registration import register_once
from training.registry.transitions import Author
from training.tracking.connection import connect
from training.tracking.model_registry import ModelRegistry
from training.tracking.run import reopen_run

BY = Author(who="vera", why="a test")


@pytest.fixture
def promotion(project: Any) -> Promotion:
    return Promotion.of(ModelRegistry(client=connect(project.tracking_uri), name=project.pipeline), project.store)


@pytest.fixture
def new_version(promotion: Promotion, tracked_report: Any) -> Callable[..., str]:
    """Registers one more version and puts it into staging."""
    made: list[str] = []

    def register(*, into_staging: bool = True) -> str:
        report = tracked_report(reason=f"Good, number {len(made)}.")
        source = f"{reopen_run(promotion.registry.client, report.parent.tracking_run).artifact_uri}/model"
        version = register_once(promotion.registry, report, source=source, git_commit="c", run_key="k")
        made.append(version)
        if into_staging:
            promotion.stage(version, BY, report=f"reports/{version}.html")
        return version

    return register


def tags(promotion: Promotion) -> dict[str, str]:
    return {str(found.version): found.tags.get("mlops.stage") for found in promotion.registry.versions()}
