from __future__ import annotations

import resource

import pytest

from mlops.process import allow_open_files, open_files_of, orphaned


@pytest.mark.parametrize(
    ("parent", "launcher", "under_torchrun", "expected"),
    [
        pytest.param(10, "10", False, False, id="child of its launcher"),
        pytest.param(1, "10", False, True, id="launcher has ended"),
        pytest.param(7, "10", False, True, id="adopted by another than init"),
        pytest.param(11, "10", True, False, id="worker of torchrun"),
        pytest.param(1, "10", True, True, id="torchrun has ended"),
        pytest.param(1, "1", False, False, id="launcher is process 1 of a container"),
        pytest.param(1, None, True, False, id="torchrun is process 1 of a container"),
        pytest.param(0, None, False, False, id="process 1 of a container itself"),
    ],
)
def test_orphans_are_told_from_containers(
    parent: int, launcher: str | None, under_torchrun: bool, expected: bool
) -> None:
    """Broken: a step would run beside its own retry, or no step would start in a container."""
    assert orphaned(parent, launcher, under_torchrun=under_torchrun) is expected


def test_the_limit_of_open_files_follows_the_number_of_processes() -> None:
    """Broken: a training of more than 300 processes would end with "too many open files" while they connect."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = open_files_of(340)
    assert 1024 < needed <= before[1], "this machine allows fewer files than the test needs"
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        allow_open_files(needed, "a training of 340 processes")
        assert needed <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
