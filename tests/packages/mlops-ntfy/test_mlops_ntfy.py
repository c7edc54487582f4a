"""``pytest test_mlops_ntfy.py``"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest
from mlops_ntfy import Ntfy

from mlops_provider.testing.notifiers import NotifierConformance


class TestNtfy(NotifierConformance):
    notifier = Ntfy
    settings: ClassVar[dict[str, Any]] = {"topic": "oncall", "connection": "ntfy"}
    away: ClassVar[dict[str, Any]] = {"topic": "oncall", "connection": "away"}

    @pytest.fixture
    def server(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
        published: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                published.append(f"{asked['title']}\n{asked['message']}\n{asked['click']}")
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, port in (("NTFY", server.server_port), ("AWAY", 9)):
            connection = json.dumps({"conn_type": "http", "host": f"http://127.0.0.1:{port}"})
            monkeypatch.setenv(f"AIRFLOW_CONN_{name}", connection)
        yield published
        server.shutdown()
        server.server_close()

    @pytest.fixture
    def received(self, server: list[str]) -> list[str]:
        return server
