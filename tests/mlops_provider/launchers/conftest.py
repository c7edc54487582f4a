"""What the tests of the launchers share."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from scripted_api import Asked, serve


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Serves by a handler while a coroutine uses the API."""
    kubeconfig = tmp_path / "kubeconfig"
    monkeypatch.setattr("kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return lambda handler, use: asyncio.run(serve(kubeconfig, handler, use))
