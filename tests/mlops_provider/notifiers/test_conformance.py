"""Our notifiers, and one of a package that is not part of the project, held to the suite that others run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from other_packages import installed, missing_on, package
from told_people import mail_server, web_hook

from mlops.contract.section import SpecError
from mlops_provider.incidents import EXAMPLE
from mlops_provider.notifiers.named import sender
from mlops_provider.notifiers.smtp import SmtpMail
from mlops_provider.notifiers.webhook import Webhook
from mlops_provider.testing.notifiers import NotifierConformance


class Arrived(Sequence[str]):
    """What has arrived, whenever it is looked at."""

    def __init__(self, texts: Any) -> None:
        self._texts = texts

    def __getitem__(self, index: Any) -> Any:
        return self._texts()[index]

    def __len__(self) -> int:
        return len(self._texts())


class TestSmtpMail(NotifierConformance):
    notifier = SmtpMail
    settings: ClassVar[dict[str, Any]] = {"to": ["a@example.org"], "connection": "mail"}
    away: ClassVar[dict[str, Any]] = settings | {"connection": "nowhere"}

    @pytest.fixture
    def received(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sequence[str]]:
        with mail_server() as (mailbox, connection):
            monkeypatch.setenv("AIRFLOW_CONN_MAIL", connection)
            monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", json.dumps(json.loads(connection) | {"port": 9}))
            yield Arrived(lambda: [f"{mail['Subject']}\n{page_of(mail)}" for mail in mailbox.mails])


class TestWebhook(NotifierConformance):
    notifier = Webhook
    settings: ClassVar[dict[str, Any]] = {"connection": "hook"}
    away: ClassVar[dict[str, Any]] = {"connection": "nowhere"}

    @pytest.fixture
    def received(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sequence[str]]:
        with web_hook() as (hook, connection):
            monkeypatch.setenv("AIRFLOW_CONN_HOOK", connection)
            nowhere = '{"conn_type": "http", "host": "http://127.0.0.1:9"}'
            monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", nowhere)
            yield Arrived(lambda: [f"{each['subject']}\n{each['text']}" for each in hook.posted])


def test_one_of_a_package_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with installed("mlops-ntfy", tmp_path), web_hook() as (hook, connection):
        monkeypatch.setenv("AIRFLOW_CONN_NTFY", connection)
        with pytest.raises(SpecError, match="here: the key 'topic' is missing"):
            sender("ntfy", {}, "here")
        sender("ntfy", {"topic": "oncall", "connection": "ntfy"}, "here")(EXAMPLE)
        (published,) = hook.posted
        assert (published["title"], published["priority"]) == (EXAMPLE.subject, 4)


def test_its_own_tests_pass(tmp_path: Path) -> None:
    with installed("mlops-ntfy", tmp_path):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", package("mlops-ntfy"), f"--rootdir={tmp_path}"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout


def test_the_page_shows_this_package() -> None:
    assert missing_on("notifier.md", "mlops-ntfy", ["pyproject.toml", "mlops_ntfy.py", "test_mlops_ntfy.py"]) == []


def page_of(mail: Any) -> str:
    part = mail.get_body(("html",))
    assert part is not None
    return str(part.get_content())
