"""A proxy in front of an HTTP server, that answers for it with an error while it is told to."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_HOP = {"connection", "transfer-encoding", "keep-alive"}


class BusyServer:
    """
    :param port: of the server behind it, on the loopback; None where it only answers for itself
    :param listen: on this port; any that is free if 0
    """

    def __init__(self, port: int | None = None, listen: int = 0) -> None:
        self.status: int | None = None
        """What it answers; None: what the server does."""
        self.body = b""
        """Of these answers."""
        self.num_refused = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if outer.status is not None or port is None:
                    outer.num_refused += 1
                    self.answer(outer.status or 503, {}, outer.body)
                    return
                behind = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                behind.request(self.command, self.path, body, dict(self.headers))
                answer = behind.getresponse()
                headers = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
                self.answer(answer.status, headers, answer.read())
                behind.close()

            def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "date", "server"):
                        self.send_header(name, value)
                length = headers.get("Content-Length", str(len(body))) if self.command == "HEAD" else str(len(body))
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = handle_any

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", listen), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def busy_server(port: int | None = None, listen: int = 0) -> Iterator[BusyServer]:
    server = BusyServer(port, listen)
    try:
        yield server
    finally:
        server.close()
