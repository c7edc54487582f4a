"""Where people would be told: a mail server, and a web hook."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from mlops_provider.local.ports import free_port


class Mailbox:
    """Keeps the mails that it gets."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        mail = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        self.recipients.append(list(envelope.rcpt_tos))
        return "250 OK"

    def wait_for(self, subject: str, timeout_seconds: float = 60) -> EmailMessage:
        """Return the mail with this subject."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            if found := [mail for mail in self.mails if mail["Subject"] == subject]:
                return found[0]
            assert time.monotonic() < deadline, [mail["Subject"] for mail in self.mails]
            time.sleep(0.1)


@contextmanager
def mail_server() -> Iterator[tuple[Mailbox, str]]:
    """
    Run a mail server.

    :return: what it got, and its address as an Airflow connection
    """
    mailbox, port = Mailbox(), free_port()
    controller = Controller(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    extra = {"disable_ssl": True, "disable_tls": True, "from_email": "mlops@example.com", "retry_limit": 1}
    connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": port, "extra": extra}
    try:
        yield mailbox, json.dumps(connection)
    finally:
        controller.stop()


class Hook:
    """Keeps what is posted to it."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.refused = 0
        """So many requests are answered with 503 first."""
        self.released = threading.Event()
        """Until then nothing is answered."""
        self.released.set()

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], timeout_seconds: float = 60) -> dict[str, Any]:
        """Return the first that is wanted."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            if found := [each for each in self.posted if wanted(each)]:
                return found[0]
            assert time.monotonic() < deadline, [(each.get("event"), each.get("run_id")) for each in self.posted]
            time.sleep(0.1)


@contextmanager
def web_hook() -> Iterator[tuple[Hook, str]]:
    """
    Run a web hook.

    :return: what it got, and its address as an Airflow connection
    """
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.released.wait()
            hook.paths.append(self.path)
            status = 503 if hook.refused else 200
            if hook.refused:
                hook.refused -= 1
            else:
                hook.posted.append(json.loads(body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    connection = {"conn_type": "http", "host": f"http://127.0.0.1:{server.server_port}"}
    try:
        yield hook, json.dumps(connection)
    finally:
        hook.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True, kw_only=True, slots=True)
class People:
    """Whom pipelines tell."""

    mailbox: Mailbox
    hook: Hook
    connections: dict[str, str]
    """Airflow's connections ``mail`` and ``hook``, as environment variables."""


@contextmanager
def people() -> Iterator[People]:
    """Run a mail server and a web hook."""
    with mail_server() as (mailbox, mail), web_hook() as (hook, posts):
        yield People(mailbox=mailbox, hook=hook, connections={"AIRFLOW_CONN_MAIL": mail, "AIRFLOW_CONN_HOOK": posts})


def add_notify(home: Path) -> None:
    """Have the project's pipeline tell the web hook everything, and by mail what is urgent."""
    with (home / "dags/events.pipeline.yaml").open("a") as file:
        file.write(
            "notify:\n- {by: webhook, settings: {connection: hook}}\n"
            "- {by: smtp, events: [failed, promoted], settings: {connection: mail, to: [oncall@example.com]}}\n"
        )
