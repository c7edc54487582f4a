"""A proxy in front of an S3 server that loses answers: the write is done, and its writer is told 503, or nothing."""

from __future__ import annotations

import http.client
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass
class LossyProxy:
    """What happens to answers is drawn by ``chance``; ``counts`` says how often each thing has."""

    server: str
    chance: random.Random
    lost: float
    """Share of the answers to conditional writes that are lost, and of the answers to reads that are 503."""
    endpoint: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    turn: threading.Lock = field(default_factory=threading.Lock)
    """The server looks whether a key is taken and writes it in two steps: it gets one conditional write at a time."""

    def fault(self, method: str, conditional: bool) -> str:
        with self.turn:
            if not conditional and method != "GET":
                return ""
            drawn = self.chance.random()
            faults = ("503", "cut") if conditional else ("503",)
            found = self.chance.choice(faults) if drawn < self.lost else ""
            self.counts[f"{method} {found or 'answered'}"] += 1
            return found


@contextmanager
def lossy_proxy(server: str, *, seed: int, lost: float) -> Iterator[LossyProxy]:
    """:param server: ``http://HOST:PORT``"""
    proxy = LossyProxy(server=server, chance=random.Random(seed), lost=lost)
    place = urlsplit(server).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            conditional = self.command == "PUT" and "If-None-Match" in self.headers
            fault = proxy.fault(self.command, conditional)
            if fault and not conditional:
                self.answer(503, {}, SLOW_DOWN)
                return
            connection = http.client.HTTPConnection(place, timeout=30)
            with proxy.turn:
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                data = answer.read()
            connection.close()
            if fault == "503":
                self.answer(503, {}, SLOW_DOWN)
            elif fault == "cut":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            else:
                self.answer(answer.status, dict(answer.getheaders()), data)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

        def answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, format: str, *values: object) -> None:
            """Nothing: the counts say it."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    listening = Server(("127.0.0.1", 0), Handler)
    proxy.endpoint = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join(60)
