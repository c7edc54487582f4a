"""What the tests of the provider share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest
import services
from ref_fixtures import study_ref, tuned_version_ref, version_ref  # noqa: F401, the fixtures of these tests


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """A command that is called in this process takes settings of the local Airflow over, for good."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="module")
def tracking() -> Iterator[str]:
    """Address of an MLflow server."""
    with services.mlflow_server() as address:
        yield address
