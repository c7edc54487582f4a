"""``pytest test_mlops_nice.py``, with ``MLOPS_PROJECT`` naming a checkout whose runtimes are made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mlops_nice import Nice, NiceLauncher

from mlops_provider.testing.launchers import LauncherConformance, deployment_of, make_home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home") / "project", Path(os.environ["MLOPS_PROJECT"]))


@pytest.fixture
def launcher(home: Path) -> NiceLauncher:
    return NiceLauncher(deployment_of(home), Nice())


class TestNiceLauncher(LauncherConformance):
    pass
