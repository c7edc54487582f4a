from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from mlops.registry.registration import Registered
from mlops.tracking.connection import connect
from mlops.tracking.model_registry import ModelRegistry


@pytest.fixture
def registry(project: Any) -> ModelRegistry:
    return ModelRegistry(client=connect(project.tracking_uri), name=project.pipeline)


@pytest.fixture
def register(registry: ModelRegistry, register_report: Any) -> Any:
    return partial(register_report, registry)


def test_processes_that_register_at_once_agree_on_one_version(
    registry: ModelRegistry, tracked_report: Any, register: Any
) -> None:
    """Broken: two schedulers, or a task that was thought dead, would register one model twice."""
    report = tracked_report()
    register(tracked_report(reason="Another."))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(register, [report] * 4))
    assert registry.versions_with_digest(report.digest()) == [answers[0].version]
    assert set(answers) == {answers[0]}


def test_processes_that_write_one_tag_or_alias_at_once_all_succeed(
    registry: ModelRegistry, tracked_report: Any, register: Any
) -> None:
    """Broken: MLflow looks for it, finds none, and answers the slower ones that their request is bad."""
    version = register(tracked_report()).version
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            name = f"of_all_{number}"
            list(pool.map(lambda _, name=name: registry.set_tag(version, name, "1"), range(8)))
            assert all(pool.map(lambda _, name=name: registry.set_alias(name, version), range(8)))
    assert registry.tags_of(version).items() >= {(f"of_all_{number}", "1") for number in range(20)}
    assert set(registry.aliases().values()) == {version}
    assert len(registry.aliases()) == 20


def test_models_that_are_registered_at_once_get_numbers_of_their_own(
    registry: ModelRegistry, tracked_report: Any, register: Any
) -> None:
    """Broken: two versions would have one number, or a later one a lower one, and a caller would take the wrong one."""
    reports = [tracked_report(reason=f"Number {number}.") for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(register, reports, "111111", "111222"))
    ordered = sorted(answers, key=lambda answer: int(answer.version))
    numbers = [tuple(map(int, answer.semantic_version.split("."))) for answer in ordered]
    assert numbers == sorted(set(numbers)), ordered
    assert [registry.tags_of(answer.version)["mlops.semantic_version"] for answer in ordered] == [
        answer.semantic_version for answer in ordered
    ]


def test_a_number_that_was_not_given_before_a_kill_is_given_by_the_retry(
    registry: ModelRegistry, tracked_report: Any, register: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: the version would stay without its number, or take one that a later version has by now."""
    register(tracked_report(reason="First."))
    late = tracked_report(reason="Late.")
    with monkeypatch.context() as patch:
        patch.setattr(ModelRegistry, "set_tag", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            register(late)
    assert register(tracked_report(reason="Third."), architecture="2").semantic_version == "1.1.0"
    assert register(late) == Registered(version="2", semantic_version="1.0.1")
