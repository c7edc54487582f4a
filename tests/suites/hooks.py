"""
What every pytest session of this project does: long files first, the cost of each test, and the state of its processes
where it fails.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds of each test file that takes long, as ``--write-durations`` wrote them. Only their order matters."""
LIGHT = "not server and not gang"
SERVERS = re.compile(
    r"mlflow'?,? '?server|models'?,? '?serve|airflow'?,? '?(api-server|scheduler)"
    r"|bin/postgres|redis-server|moto\.server|spark-submit|chromium"
)
GANGS = re.compile(r"torchrun|torch\.distributed\.run|mlops\.steps")
SERVER_FIXTURES = {
    "mlflow_server",
    "postgres",
    "redis_server",
    "s3",
    "_s3_server",
    "new_airflow",
    "cluster",
}
LOG = re.compile(r"log|log-.*|.*\.log|.*\.err|std(out|err)")
STACKS = 12
"""Processes whose stacks a failed test shows, the newest first."""
TAIL_LINES = 25


class SuiteHooks:
    """A pytest plugin, registered by ``tests/conftest.py``."""

    def __init__(self, config: pytest.Config) -> None:
        self._began: dict[str, tuple[float, float]] = {}
        self._long = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
        if config.getoption("markexpr", "") == LIGHT:
            sys.addaudithook(_refuse_heavy)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Files that take long begin first, so that none goes on alone when all others are done."""
        items.sort(key=lambda item: -self._long.get(item.nodeid.split("::")[0], 0.0))

    @pytest.hookimpl(tryfirst=True)
    def pytest_itemcollected(self, item: pytest.Item) -> None:
        if SERVER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("server")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began[nodeid] = time.time(), _cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        began, cpu = self._began.get(item.nodeid, (time.time(), _cpu_seconds()))
        if call.when == "teardown":
            item.user_properties.append(("cpu_seconds", round(_cpu_seconds() - cpu, 3)))
        report = yield
        if report.failed and call.when != "teardown":
            logs = _logs(item.config._tmp_path_factory.getbasetemp(), began)  # type: ignore[attr-defined]
            for title, text in (("Stacks of its processes", _stacks_below()), ("Ends of its logs", logs)):
                if text:
                    report.sections.append((title, text))
        return report


def _cpu_seconds() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both)


def _refuse_heavy(event: str, arguments: tuple[Any, ...]) -> None:
    """Hold ``make check`` to its promise: a test that starts a server or a gang says so by its marker."""
    if event != "subprocess.Popen":
        return
    command = str([os.fspath(word) for word in arguments[1]] if not isinstance(arguments[1], str) else arguments[1])
    for marker, pattern in (("server", SERVERS), ("gang", GANGS)):
        if pattern.search(command):
            raise RuntimeError(
                f"this test starts a {marker}, so `make check` must leave it out: mark it with "
                f"@pytest.mark.{marker}. It would run {command[:300]}"
            )


def stacks(processes: Sequence[Any]) -> str:
    """
    Where Python processes are, as py-spy sees them; other processes by their command.

    :param processes: of psutil
    """
    import psutil

    said = []
    for process in processes:
        command = [str(Path(sys.executable).with_name("py-spy")), "dump", "--nonblocking", "--pid", str(process.pid)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
            said.append(done.stdout if done.returncode == 0 else f"{process.pid}: {' '.join(process.cmdline())}\n")
        except (subprocess.TimeoutExpired, psutil.Error) as error:
            said.append(f"{process.pid}: {error!r}\n")
    return "\n".join(said)


def _stacks_below() -> str:
    import psutil

    children = psutil.Process().children(recursive=True)
    return stacks(sorted(children, key=lambda each: -each.pid)[:STACKS])


def _logs(folder: Path, since: float, most: int = 10) -> str:
    """The last lines of the logs that were written since then, the newest first."""
    found = []
    for root, _, files in os.walk(folder):  # follows no links, so it leaves out what a project only names
        for path in (Path(root, name) for name in files if LOG.fullmatch(name)):
            try:
                status = path.stat()
            except OSError:
                continue
            if status.st_mtime >= since and status.st_size:
                found.append((status.st_mtime, path))
    said = []
    for _, path in sorted(found, reverse=True)[:most]:
        try:
            lines = path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        except OSError:
            continue
        said.append(f"--- {path}\n" + "\n".join(lines))
    return "\n".join(said)
