"""One suite of tests: a pytest session in the environment that the tested code runs in."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil
from suites.hooks import stacks

REPOSITORY = Path(__file__).parents[2]
VALIDATION = ("tests/training/validation", "tests/training/steps/test_validate.py")


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What one pytest session runs, and where."""

    name: str
    environment: str
    """Folder under ``.venv``."""
    paths: Sequence[str]
    ignored: Sequence[str] = ()
    workers: int = 0
    """Processes of pytest-xdist; 0 runs the tests in the session's own process."""

    @property
    def python(self) -> str:
        return str(REPOSITORY / ".venv" / self.environment / "bin/python")

    def command(self, report: Path, options: Sequence[str], paths: Sequence[str] | None = None) -> list[str]:
        """
        :param paths: files or tests to run instead of the suite's own, one after the other in one process
        """
        command = [self.python, "-m", "pytest", f"--report-log={report}", "--report-log-exclude-logs-on-passed-tests"]
        command += options
        if paths is None:
            command += [f"--ignore={path}" for path in self.ignored]
            if self.workers:
                # Files are begun in the order of the session (see hooks.py): the longest first.
                command += ["-n", str(self.workers), "--dist", "loadfile", "--no-loadscope-reorder"]
        return [*command, *(self.paths if paths is None else paths)]


def suites(cores: int) -> list[Suite]:
    """
    All suites, the longest first.

    Half of a test's time is waiting, for servers and for processes that start: two workers a core keep it busy.
    """
    return [
        Suite(
            name="airflow",
            environment="airflow",
            paths=(
                "tests/end_to_end",
                "tests/security",
                "tests/mlops_provider",
                "tests/benchmarks",
                "tests/cluster",
                "tests/deployment",
                "tests/suites",
            ),
            workers=cores,
        ),
        Suite(
            name="training",
            environment="training",
            paths=("tests/training",),
            ignored=VALIDATION,
            workers=cores + 1,
        ),
        Suite(name="validation", environment="validation", paths=VALIDATION),
    ]


@dataclass(kw_only=True)
class Session:
    """A started suite. All that its processes write is under ``scratch``, as far as they follow ``TMPDIR``."""

    suite: Suite
    report: Path
    log: Path
    process: subprocess.Popen[bytes]
    _lines: IO[str] | None = field(default=None)

    @classmethod
    def start(
        cls,
        suite: Suite,
        folder: Path,
        scratch: Path,
        *,
        options: Sequence[str] = (),
        paths: Sequence[str] | None = None,
        name: str | None = None,
    ) -> Session:
        """
        :param folder: the checkout
        :param paths: as of :meth:`Suite.command`
        :param name: of the log and the report; the suite's own if None
        """
        name = name or suite.name
        build = folder / "build/tests"
        for place in (scratch, build):
            place.mkdir(parents=True, exist_ok=True)
        report, log = build / f"{name}.jsonl", build / f"{name}.log"
        report.write_text("")
        command = suite.command(report, options, paths)
        with log.open("wb") as output:
            output.write(f"$ {shlex.join(command)}\n".encode())
            output.flush()
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "TMPDIR": str(scratch)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(suite=suite, report=report, log=log, process=process)

    def new_lines(self) -> list[str]:
        """What pytest reported since the last call: whole lines of JSON."""
        self._lines = self._lines or self.report.open()
        lines = []
        while True:
            place = self._lines.tell()
            line = self._lines.readline()
            if not line.endswith("\n"):
                self._lines.seek(place)
                return lines
            lines.append(line)

    def show_stacks(self) -> None:
        """Print where its processes of pytest are."""
        print(stacks([psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children()]), flush=True)

    def kill(self) -> None:
        """End the session and all that descends from it; nothing where it has ended."""
        if self.process.poll() is not None:
            return
        root = psutil.Process(self.process.pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
