from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from training.registry.champion import find_champion
from training.registry.registration import register_once
from training.tracking.connection import connect
from training.tracking.model_registry import ModelRegistry
from training.tracking.run import reopen_run


@pytest.fixture
def registry(project: Any) -> ModelRegistry:
    return ModelRegistry(client=connect(project.tracking_uri), name=project.pipeline)


def test_processes_that_register_at_once_agree_on_one_version(registry: ModelRegistry, tracked_report: Any) -> None:
    """Broken: two schedulers, or a task that was thought dead, would register one model twice."""
    report = tracked_report()
    source = f"{reopen_run(registry.client, report.parent.tracking_run).artifact_uri}/model"

    def register(_: int) -> str:
        return register_once(registry, report, source=source, git_commit="c", run_key="k")

    register_once(registry, tracked_report(reason="Another."), source=source, git_commit="c", run_key="k")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(register, range(4)))
    assert registry.versions_with_digest(report.digest()) == [answers[0]]
    assert set(answers) == {answers[0]}


def test_the_champion_is_found_with_its_checkpoint(registry: ModelRegistry, tracked_report: Any) -> None:
    assert find_champion(registry) is None
    report = tracked_report()
    source = f"{reopen_run(registry.client, report.parent.tracking_run).artifact_uri}/model"
    version = register_once(registry, report, source=source, git_commit="c", run_key="k")
    assert find_champion(registry) is None, "registered, but not in production"
    registry.set_alias("champion", version)
    champion = find_champion(registry)
    assert champion is not None
    assert (champion.version, champion.checkpoint) == (version, report.parent)
