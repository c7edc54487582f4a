from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from airflow.api_fastapi.core_api.security import get_user
from rest_world import World

from mlops_provider.api.airflow import Airflow, _airflow
from mlops_provider.api.app import app


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()

    async def airflow() -> AsyncIterator[Airflow]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(found.answer), base_url="http://airflow") as client:
            yield Airflow(client)

    asker = {_airflow: airflow, get_user: lambda: SimpleNamespace(get_name=lambda: "ana")}
    monkeypatch.setattr(app, "dependency_overrides", asker)
    monkeypatch.setenv("AIRFLOW__MLOPS__STORE", f"file://{tmp_path}/store")
    return found
