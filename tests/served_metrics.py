"""A source of live metrics, as a server of models would be one."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Served:
    """An HTTP server on loopback that gives what it is told, and notes what it was asked."""

    def __init__(self) -> None:
        self.answer: Any = {}
        self.status = 200
        self.answers: dict[str, tuple[int, Any]] = {}
        """Status and answer to addresses that end otherwise."""
        self.asked: list[str] = []
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.asked.append(self.path)
                end = next((end for end in served.answers if self.path.endswith(end)), None)
                status, answer = (served.status, served.answer) if end is None else served.answers[end]
                body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
